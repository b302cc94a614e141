"""Tiny random models, an independent reference (transformers and peft) and packed batches written by hand."""

import itertools
import uuid
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from art_dataplane import (
    Lease,
    PackedBatchRef,
    PackingCounts,
    ShmBatchMapper,
    ShmSegmentStore,
    TensorSpec,
)
from art_trainer import LoraSpec, TrainerRuntimeSpec

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


FAMILIES = ("llama", "qwen3")
SHAPES = {
    "tied": {},
    "untied": {"tied": False, "seed": 1},
    "llama3 rope": {"rope": LLAMA3_ROPE, "seed": 2},
    "one kv head": {"num_key_value_heads": 1, "seed": 3},
    "a kv head each": {"num_key_value_heads": 6, "seed": 5},
    "heads as wide as hidden": {"head_dim": 6, "seed": 6},
    "sharded": {"tied": False, "seed": 4, "shard": "20KB"},
}
"""Changes to the tiny model, whose heads together are wider than its hidden size."""


@pytest.fixture(scope="session")
def llama3_rope():
    return LLAMA3_ROPE


@pytest.fixture(scope="session")
def make_model(tmp_path_factory):
    """Writes a random model with grouped-query attention in Hugging Face's layout; returns the folder."""

    def make(family, tied=True, rope=None, seed=0, shard="1GB", **changes):
        import transformers

        settings = {
            "hidden_size": 36,
            "intermediate_size": 56,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "vocab_size": 96,
            "max_position_embeddings": 128,
            "initializer_range": 0.1,
            "tie_word_embeddings": tied,
            **changes,
        }
        name = {"llama": "Llama", "qwen3": "Qwen3"}[family]
        config_class = getattr(transformers, f"{name}Config")
        config = config_class(**settings, **({"rope_parameters": rope} if rope else {}))
        torch.manual_seed(seed)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
        folder = tmp_path_factory.mktemp(family)
        model.save_pretrained(folder, max_shard_size=shard)
        return str(folder)

    return make


@pytest.fixture(scope="session")
def tiny_llama(make_model):
    """For what does not depend on the family."""
    return make_model("llama")


@pytest.fixture(scope="session", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="session")
def tiny_model(family, make_model, tiny_llama):
    """One tiny model of every family."""
    return tiny_llama if family == "llama" else make_model(family)


@pytest.fixture(scope="module", params=SHAPES)
def shaped_model(request, family, make_model):
    """Every family in every shape."""
    return make_model(family, **SHAPES[request.param])


@dataclass(frozen=True)
class Completion:
    """One trained completion of ``prompt``: its sampler log-probs, advantage and temperature."""

    prompt: list[int]
    tokens: list[int]
    old_logprobs: list[float]
    advantage: float
    temperature: float = 1.0
    version: int = 0


@pytest.fixture
def completions():
    """Two prompts with several completions each; one pair of completions shares its beginning."""

    def make(seed=0, vocabulary=96, groups=2, samples=4, prompt_length=9, length=6):
        rng = np.random.default_rng(seed)
        made = []
        for group in range(groups):
            prompt = rng.integers(0, vocabulary, prompt_length + group).tolist()
            stem = rng.integers(0, vocabulary, 2).tolist()
            for sample in range(samples):
                tail = rng.integers(0, vocabulary, length).tolist()
                tokens = stem + tail[2:] if sample < 2 else tail
                made.append(
                    Completion(
                        prompt,
                        tokens,
                        (-rng.uniform(2, 7, length)).tolist(),
                        float(rng.standard_normal()),
                        float(rng.choice([0.8, 1.0])),
                    )
                )
        return made

    return make


def _arrays(tokens, positions, ends, losses):
    columns = list(zip(*losses, strict=True)) if losses else [[]] * 7
    types = ["int32", "int32", "float32", "float32", "float32", "int32", "float32"]
    names = ["source", "target", "old_logprob", "advantage", "weight", "version", "temperature"]
    loss = {
        f"loss_{name}": np.array(column, dtype)
        for name, column, dtype in zip(names, columns, types, strict=True)
    }
    return {
        "token_ids": np.array(tokens, np.int32),
        "position_ids": np.array(positions, np.int32),
        "subtree_end": np.array(ends, np.int32),
        **loss,
        "loss_record": np.zeros(len(losses), np.int32),
    }


def _batch(rows):
    """Weighs the entries of the rows of one batch so that its loss is the mean over all of them."""
    count = sum(len(row["loss_source"]) for row in rows)
    return [{**row, "loss_weight": np.full(len(row["loss_source"]), 1 / count, np.float32)} for row in rows]


@pytest.fixture
def as_batch():
    """Rows with the weights of one batch: its loss is the mean over the entries of all of them."""
    return _batch


@pytest.fixture
def pack_chains():
    """A row with every completion as a tree of its own, prompt repeated: packed, but nothing shared."""

    def pack(completions):
        tokens, positions, ends, losses = [], [], [], []
        for item in completions:
            start, text = len(tokens), item.prompt + item.tokens[:-1]
            tokens += text
            positions += range(len(text))
            ends += [start + len(text)] * len(text)
            for index, token in enumerate(item.tokens):
                source = start + len(item.prompt) - 1 + index
                values = (item.old_logprobs[index], item.advantage, 1.0, item.version, item.temperature)
                losses.append((source, token, *values))
        return _batch([_arrays(tokens, positions, ends, losses)])[0]

    return pack


@pytest.fixture
def pack_forest():
    """A row with equal prefixes merged: a plain recursive trie in depth-first order."""

    def pack(completions):
        tokens, positions, ends = [], [], []
        order, losses = [], {}

        def visit(depth, members):
            """``members`` share a prefix of ``depth`` tokens; lays out what follows."""
            groups = {}
            for member in members:
                text = completions[member].prompt + completions[member].tokens[:-1]
                if depth < len(text):
                    groups.setdefault(text[depth], []).append(member)
            for token, group in groups.items():
                index = len(tokens)
                tokens.append(token)
                positions.append(depth)
                ends.append(0)
                for member in group:
                    item = completions[member]
                    at = depth - (len(item.prompt) - 1)
                    if at >= 0:
                        values = (item.old_logprobs[at], item.advantage, 1.0, item.version, item.temperature)
                        losses[member, at] = (index, item.tokens[at], *values)
                visit(depth + 1, group)
                ends[index] = len(tokens)

        visit(0, range(len(completions)))
        order = sorted(losses)
        return _batch([_arrays(tokens, positions, ends, [losses[key] for key in order])])[0]

    return pack


@pytest.fixture(params=["one sequence a row", "packed chains", "forest"])
def rows(request, pack_chains, pack_forest):
    """Completions to rows, in each of the three layouts."""
    return {
        "one sequence a row": lambda items: _batch([pack_chains([item]) for item in items]),
        "packed chains": lambda items: [pack_chains(items)],
        "forest": lambda items: [pack_forest(items)],
    }[request.param]


class Reference:
    """transformers and peft on unpacked, unpadded sequences, one at a time."""

    def __init__(self, model_path, lora, adapter=None, dtype=torch.float32):
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype)
        self.model = get_peft_model(
            base,
            LoraConfig(
                r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.target_modules), lora_dropout=0.0
            ),
        )
        if adapter is not None:
            self.load(adapter)

    def parameters(self):
        return {
            name.replace(".default.", "."): parameter
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }

    def load(self, adapter):
        parameters = self.parameters()
        assert set(parameters) == set(adapter)
        with torch.no_grad():
            for name, tensor in adapter.items():
                parameters[name].copy_(tensor)

    def logprobs(self, item):
        text = torch.tensor([item.prompt + item.tokens[:-1]])
        logits = self.model(input_ids=text).logits[0, len(item.prompt) - 1 :] / item.temperature
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(item.tokens)[:, None])[:, 0]

    def loss(self, completions, clip_low=0.2, clip_high=0.2):
        count = sum(len(item.tokens) for item in completions)
        total = 0.0
        for item in completions:
            ratio = (self.logprobs(item) - torch.tensor(item.old_logprobs)).exp()
            surrogate = torch.minimum(
                ratio * item.advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * item.advantage
            )
            total = total - surrogate.sum() / count
        return total

    def gradients(self, completions, **clips):
        self.model.zero_grad()
        self.loss(completions, **clips).backward()
        return {name: parameter.grad.clone() for name, parameter in self.parameters().items()}


@pytest.fixture
def reference():
    return Reference


@pytest.fixture
def random_adapter():
    """Non-zero adapter weights under PEFT's names, so that both factors have gradients."""

    def make(model_path, lora, seed=0, scale=0.2):
        shapes = {
            name: parameter.shape for name, parameter in Reference(model_path, lora).parameters().items()
        }
        generator = torch.Generator().manual_seed(seed)
        return {name: torch.randn(shape, generator=generator) * scale for name, shape in shapes.items()}

    return make


@pytest.fixture
def runtime(tiny_llama):
    """A runtime spec for the tiny model."""

    def make(**changes):
        settings = {
            "model_path": tiny_llama,
            "packed_sequence_length": 256,
            "lora": LoraSpec(rank=4, alpha=8),
        }
        return TrainerRuntimeSpec(**{**settings, **changes})

    return make


@pytest.fixture
def batches():
    """Writes rows into shared memory as a packed batch and maps them as the data plane does."""
    names = itertools.count()
    with ShmSegmentStore(f"test-batches-{uuid.uuid4().hex[:8]}", 1 << 24) as store:

        def make(*rows, **changes):
            offsets = np.cumsum([0, *(len(row["token_ids"]) for row in rows)]).astype(np.int32)
            loss_offsets = np.cumsum([0, *(len(row["loss_source"]) for row in rows)]).astype(np.int32)
            arrays = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
            arrays |= {"row_offsets": offsets, "loss_row_offsets": loss_offsets}
            specs, at = [], 0
            for name, array in arrays.items():
                specs.append(TensorSpec(name, str(array.dtype), array.shape, at, array.nbytes))
                at += -(-array.nbytes // 64) * 64
            with store.reserve(at) as reservation:
                for spec, array in zip(specs, arrays.values(), strict=True):
                    reservation.buffer[spec.offset : spec.offset + spec.byte_count] = array.tobytes()
                location = reservation.commit()
            name = f"batch-{next(names)}"
            lengths = len(rows), len(arrays["token_ids"]), len(arrays["loss_source"])
            settings = {
                "batch_id": name,
                "owner": "test",
                "lease": Lease("lease", 1, "test", 60.0),
                "tensors": tuple(specs),
                "byte_count": at,
                "location": location,
                "ticket": 1,
                "packed_sequence_length": 256,
                "counts": PackingCounts(8, lengths[0], lengths[1], lengths[1], lengths[2]),
                "versions": (0,),
                "record_ids": ("r",),
                "group_ids": ("g",),
            }
            return PackedBatchRef(**{**settings, **changes})

        make.mapper = ShmBatchMapper()
        make.store = store
        yield make
