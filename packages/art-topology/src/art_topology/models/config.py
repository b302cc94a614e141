"""From a Hugging Face ``config.json`` to a :class:`ModelDescription`, by its fields."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from art_topology.models.description import ModelDescription


class ModelConfigError(ValueError):
    """A configuration that does not describe a model that can be planned; says which fields are missing or
    contradict each other, and what each means."""


def load_model_config(source: str | Path | Mapping[str, Any]) -> ModelDescription:
    """Reads a configuration: the parsed ``config.json``, or a path to it or to its folder.

    Raises:
        ModelConfigError: fields are missing or contradict each other; every one of them is named.
        OSError: the file cannot be read.
    """
    raise NotImplementedError
