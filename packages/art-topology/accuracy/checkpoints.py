"""Sizes of published checkpoints beside what the planner takes for the weights of a service."""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec

from accuracy.predict import config_of
from accuracy.rows import HERE
from art_topology.models import ModelDescription, checkpoint_bytes, load_model_config

DTYPE_BYTES = 2
"""Of what is not quantized in these checkpoints: bfloat16 or float16."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published checkpoint.

    Args:
        model: Its configuration in ``models/``.
        repository: On the Hugging Face hub.
        bytes: As published.
        what: What was measured.
        url: Where.
        quantization: ``quantization_config`` of its config.json.
        mtp: It has the layers of multi-token prediction.
        repeated_parameters: Parameters that are in it twice.
    """

    model: str
    repository: str
    bytes: int
    what: str
    url: str
    quantization: dict[str, Any]
    mtp: bool = False
    repeated_parameters: int = 0

    @property
    def described(self) -> ModelDescription:
        """The model, quantized."""
        config = {**config_of(self.model), "quantization_config": self.quantization}
        return load_model_config(config)

    @property
    def predicted_bytes(self) -> int:
        """What the planner counts."""
        size = checkpoint_bytes(self.described, DTYPE_BYTES, mtp=self.mtp)
        return size + self.repeated_parameters * DTYPE_BYTES


def load_checkpoints() -> tuple[Checkpoint, ...]:
    """All of ``checkpoints.toml``."""
    found = tomllib.loads((HERE / "checkpoints.toml").read_text(encoding="utf-8"))
    return msgspec.convert(found["checkpoints"], tuple[Checkpoint, ...])
