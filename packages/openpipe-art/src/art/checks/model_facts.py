"""What a model folder says of itself without being loaded: ``config.json`` and its weight files' headers."""

import os
from pathlib import Path
from typing import Any

import msgspec

from art.checks.model_files import read_weights, weight_files
from art.errors import ConfigError


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one dense language model.

    Args:
        parameters: numbers in the weight files; tied weights are stored and counted once.
        file_bytes: of the weight files.
        layers, hidden, heads, kv_heads, head_dim, intermediate, vocabulary: as in ``config.json``.
        max_positions: tokens that the model was made for.
        positions_scaled: the rotary embedding is stretched, so ``max_positions`` is not the last word.
    """

    parameters: int
    file_bytes: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    max_positions: int | None
    positions_scaled: bool

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in float32."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 4

    def adapter_parameters(self, rank: int) -> int:
        """Trained numbers of a LoRA adapter of ``rank`` on the seven linear layers of every block."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes = (
            (self.hidden, query),
            (self.hidden, key),
            (self.hidden, key),
            (query, self.hidden),
            (self.hidden, self.intermediate),
            (self.hidden, self.intermediate),
            (self.intermediate, self.hidden),
        )
        return self.layers * rank * sum(rows + columns for rows, columns in shapes)

    def activation_bytes_per_token(self) -> int:
        """About what the forward pass keeps of one token for the backward pass, in float32.

        Of every block some eight rows of the hidden width and four of the MLP's. The demo's steps of about
        400 physical tokens took 0.5 GiB by this count, and by measurement.
        """
        return 4 * self.layers * (8 * self.hidden + 4 * self.intermediate)


def folder_problem(folder: Path) -> str | None:
    """Why ``folder`` is no complete Hugging Face model with safetensors weights and a tokenizer, or None."""
    if not os.path.isdir(folder):
        return (
            f"{str(folder)!r} is no folder; give the folder of a Hugging Face model. Names on a hub are not "
            "fetched: `uvx --from huggingface_hub hf download ORGANIZATION/NAME --local-dir FOLDER` makes one"
        )
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        return f"{folder} is no complete model: it has no {', no '.join(missing)}"
    return None


def read_model_facts(folder: Path) -> ModelFacts:
    """Reads ``config.json`` and the header of every weight file.

    Raises:
        ConfigError: the folder is incomplete, or a file is not what its name says.
    """
    problem = folder_problem(folder)
    if problem is not None:
        raise ConfigError(f"base_model {problem}")
    config = read_config(folder)
    stored = read_weights(folder)
    hidden, heads = _count(config, "hidden_size", folder), _count(config, "num_attention_heads", folder)
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = (
        scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else "default"
    )
    positions = config.get("max_position_embeddings")
    return ModelFacts(
        parameters=sum(tensor.count for tensor in stored.values()),
        file_bytes=sum(file.stat().st_size for file in weight_files(folder)),
        layers=_count(config, "num_hidden_layers", folder),
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=_count(config, "intermediate_size", folder),
        vocabulary=_count(config, "vocab_size", folder),
        max_positions=positions if isinstance(positions, int) else None,
        positions_scaled=kind not in ("default", "llama3"),
    )


def read_config(folder: Path) -> dict[str, Any]:
    """What ``config.json`` says of the language model.

    Raises:
        ConfigError: it cannot be read.
    """
    path = folder / "config.json"
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def _count(config: dict[str, Any], name: str, folder: Path) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"{folder / 'config.json'} has no usable {name} ({value!r})")
    return value
