"""A tiny random Llama and adapters for it, written without torch; and one model service for the whole
session.
"""

import base64
import json
import math
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
from safetensors.numpy import save_file

from art_dataplane.arrays import decode
from art_dataplane.records import TokenRecord
from art_dataplane.shm import ShmSegmentStore
from art_dataplane.snapshot import NamedTensor, SnapshotManifest, write_manifest
from art_serving import EngineOptions, Environment, LocalLauncher, ModelService, vllm_environment
from art_topology import CpuPlacement, ModelServiceMemberSpec, ModelServiceSpec

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCABULARY = 128, 2, 4, 2, 32, 192, 128
RANK, ALPHA = 8, 16

TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}assistant "


TOOL_CALL = '<tool_call>{"name": "multiply", "arguments": {"a": 3, "b": 4}}</tool_call>'
"""One token of the tiny model's, its last: a call as models of the Hermes family write it."""


@pytest.fixture(autouse=True, scope="session")
def interrupts_are_heard() -> Iterator[None]:
    """Jobs in the background of a shell ignore SIGINT, and so would the processes that tests start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class TinyModel:
    """A Llama of 2 layers whose logits differ enough to be told apart, and a tokenizer of words ``w6`` ...
    ``w126`` and a tool call.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": HIDDEN,
            "intermediate_size": INTERMEDIATE,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "float32",
        }
        (path / "config.json").write_text(json.dumps(config))
        save_file(self._weights(), path / "model.safetensors", metadata={"format": "pt"})
        self._write_tokenizer()
        # A model's own defaults must not change how the policy is sampled.
        (path / "generation_config.json").write_text(
            json.dumps({"temperature": 0.1, "top_k": 3, "eos_token_id": 2})
        )

    def projections(self) -> dict[str, tuple[int, int]]:
        """Linear layers that take an adapter: outputs and inputs."""
        shapes = {
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }
        return {f"model.layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in shapes.items()}

    def _weights(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(7)

        def normal(*shape: int) -> np.ndarray:
            return (random.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)

        weights = {f"{name}.weight": normal(*shape) for name, shape in self.projections().items()}
        for layer in range(LAYERS):
            for norm in ("input_layernorm", "post_attention_layernorm"):
                weights[f"model.layers.{layer}.{norm}.weight"] = np.ones(HIDDEN, np.float32)
        weights["model.embed_tokens.weight"] = normal(VOCABULARY, HIDDEN) * math.sqrt(HIDDEN)
        weights["model.norm.weight"] = np.ones(HIDDEN, np.float32)
        weights["lm_head.weight"] = normal(VOCABULARY, HIDDEN) * 2.0
        return weights

    def _write_tokenizer(self) -> None:
        names = ["<unk>", "<s>", "</s>", "user", "assistant", "system"]
        vocabulary = {name: index for index, name in enumerate(names)}
        vocabulary |= {f"w{index}": index for index in range(len(names), VOCABULARY - 1)}
        vocabulary[TOOL_CALL] = VOCABULARY - 1
        tokenizer = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": index,
                    "content": name,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for index, name in enumerate(names[:3])
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": None,
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
        }
        (self.path / "tokenizer.json").write_text(json.dumps(tokenizer))
        (self.path / "tokenizer_config.json").write_text(
            json.dumps(
                {
                    "tokenizer_class": "PreTrainedTokenizerFast",
                    "unk_token": "<unk>",
                    "bos_token": "<s>",
                    "eos_token": "</s>",
                    "chat_template": TEMPLATE,
                    "model_max_length": 4096,
                }
            )
        )


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return TinyModel(tmp_path_factory.mktemp("model") / "tiny")


def adapter_tensors(model: TinyModel, seed: int) -> dict[str, np.ndarray]:
    """A random adapter that changes the model's answers; names are PEFT's."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, (outputs, inputs) in model.projections().items():
        prefix = f"base_model.model.{name}"
        tensors[f"{prefix}.lora_A.weight"] = (
            random.standard_normal((RANK, inputs)) / math.sqrt(inputs)
        ).astype("f4")
        tensors[f"{prefix}.lora_B.weight"] = (random.standard_normal((outputs, RANK)) * 0.25).astype("f4")
    return tensors


PEFT_CONFIG = json.dumps(
    {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        "bias": "none",
    }
)


class Snapshots:
    """Makes snapshots of adapters in shared memory; version ``n`` is made of seed ``n``."""

    def __init__(self, model: TinyModel, store: ShmSegmentStore) -> None:
        self.model = model
        self.store = store

    def make(self, version: int, tensors: dict[str, np.ndarray] | None = None) -> SnapshotManifest:
        tensors = tensors or adapter_tensors(self.model, version)
        return write_manifest(
            version,
            PEFT_CONFIG,
            [NamedTensor(name, "float32", value.shape, value) for name, value in tensors.items()],
            self.store,
            generation=f"step-{version:08d}-test",
        )


@pytest.fixture(scope="session")
def snapshots(tiny_model: TinyModel) -> Iterator[Snapshots]:
    with ShmSegmentStore("serving-tests", 64 * 2**20) as store:
        yield Snapshots(tiny_model, store)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def environment() -> Environment:
    return await vllm_environment(deadline_s=600)


MakeSpec = Callable[..., ModelServiceSpec]


@pytest.fixture(scope="session")
def make_spec(tiny_model: TinyModel) -> MakeSpec:
    def make(name: str = "policy", **more: Any) -> ModelServiceSpec:
        values: dict[str, Any] = {
            "name": name,
            "base_model": "tiny",
            "model_path": str(tiny_model.path),
            "members": (ModelServiceMemberSpec(placement=CpuPlacement(host_id="here")),),
            "dtype": "float32",
            "max_lora_rank": 8,
            "kv_cache_bytes": 256 * 2**20,
            "startup_timeout_s": 180.0,
        }
        return ModelServiceSpec(**(values | more))

    return make


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def service(
    environment: Environment, make_spec: MakeSpec, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ModelService]:
    """One member for all tests; few tokens per step, so that long prompts take many steps."""
    options = EngineOptions(max_num_batched_tokens=64, stall_timeout_s=2.0)
    async with await ModelService.start(
        make_spec(max_num_seqs=32),
        LocalLauncher(environment),
        log_folder=tmp_path_factory.mktemp("logs"),
        options=options,
    ) as service:
        yield service


@pytest_asyncio.fixture(loop_scope="session")
async def openai_client(service: ModelService) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=service.base_url, api_key=service.api_key, max_retries=0, timeout=60
    ) as client:
        yield client


class Reference:
    """Log-probs by transformers in float64, with an adapter merged into the weights for each version.

    Keys and values of prompt and completion are computed under the versions that the record says, token by
    token where they change, so a label that is one token off shows.
    """

    def __init__(self, environment: Environment, model: TinyModel, folder: Path) -> None:
        self._model = model
        self._folder = folder
        self._errors = folder / "errors.txt"
        with open(self._errors, "w") as errors:
            self._process = subprocess.Popen(
                [environment.python, Path(__file__).with_name("reference_logprobs.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"},
            )

    def logprobs(self, record: TokenRecord) -> np.ndarray:
        """float64 ``[C]`` for the record's completion under the record's spans."""
        spans = [(span.start, span.end, span.version) for span in record.prompt_spans]
        offset = len(record.prompt_ids)
        sampled = [(span.start, span.end, span.version) for span in record.completion_spans]
        versions = {version for *_, version in spans + sampled}
        for version in versions - {0}:
            save_file(adapter_tensors(self._model, version), self._folder / f"{version}.safetensors")
        task = {
            "model": str(self._model.path),
            "adapters": {version: str(self._folder / f"{version}.safetensors") for version in versions - {0}},
            "scaling": ALPHA / RANK,
            "tokens": [*record.prompt_ids.tolist(), *record.completion_ids.tolist()],
            "prompt_spans": spans,
            "completion_spans": sampled,
            "prompt_length": offset,
            "temperature": record.temperature,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._errors.read_text()[-3000:]
        return np.array(json.loads(answer))

    def close(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture(scope="session")
def reference(
    environment: Environment, tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reference]:
    reference = Reference(environment, tiny_model, tmp_path_factory.mktemp("reference"))
    yield reference
    reference.close()


@pytest.fixture(scope="session")
def record_of() -> Callable[[Any], TokenRecord]:
    """Takes the token record out of an OpenAI choice."""

    def take(choice: Any) -> TokenRecord:
        record = decode(base64.b64decode(choice.art), TokenRecord)
        record.validate()
        return record

    return take
