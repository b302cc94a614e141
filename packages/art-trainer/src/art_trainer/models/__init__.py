"""The registry of model families."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from art_trainer.errors import ModelLoadError, UnsupportedModelError
from art_trainer.models.base import ModelDescription, ModelFamily
from art_trainer.models.llama3 import LLAMA3
from art_trainer.models.qwen3 import QWEN3

FAMILIES: tuple[ModelFamily, ...] = (LLAMA3, QWEN3)
"""Every family that can be trained."""

__all__ = ["FAMILIES", "ModelDescription", "ModelFamily", "describe_model", "read_config"]


def read_config(model_path: str) -> dict[str, Any]:
    """Reads ``config.json`` of a model folder.

    Raises:
        ModelLoadError: there is none, or it is not a JSON object.
    """
    path = Path(model_path) / "config.json"
    if not path.is_file():
        raise ModelLoadError(f"{path} does not exist; model_path must be a folder in Hugging Face's layout")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise ModelLoadError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelLoadError(f"{path} holds a {type(config).__name__}, not an object")
    return config


def describe_model(config: Mapping[str, Any]) -> ModelDescription:
    """Finds the family of a config by its ``architectures`` and lets it describe the model.

    Raises:
        UnsupportedModelError: no family covers the architecture, or the family refuses the config.
    """
    names = config.get("architectures") or []
    for family in FAMILIES:
        if any(name in family.architectures for name in names):
            return family.describe(config)
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise UnsupportedModelError(f"architectures is {names}; this version trains {known}")
