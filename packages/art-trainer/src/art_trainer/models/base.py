"""What a model family tells the trainer: everything that differs between architectures, as data.

A new family is a file in this folder and an entry in ``FAMILIES``. A dense one says in a
:class:`art_trainer.models.dense.DenseFamily` how it differs from the others; another kind implements
:class:`ModelFamily` itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from art_trainer.layout import FusedLayout
from art_trainer.models.rope import Rope


@dataclass(frozen=True)
class ModelDescription:
    """One model of a family.

    Args:
        options: of Megatron's ``TransformerConfig``, platform, dtype and activation aside.
        vocabulary: rows of the embedding.
        max_positions: positions the model was made for.
        tied: the output projection is the embedding.
        rope: the rotary embedding.
        weights: for each Megatron parameter, the Hugging Face parameters it is made of.
        targets: Hugging Face names of the linear layers that may carry an adapter.
    """

    options: Mapping[str, Any]
    vocabulary: int
    max_positions: int
    tied: bool
    rope: Rope
    weights: Mapping[str, FusedLayout]
    targets: tuple[str, ...]


class ModelFamily(Protocol):
    """A handler: one file per family in this folder."""

    @property
    def architectures(self) -> tuple[str, ...]:
        """Names in a config's ``architectures`` that the handler covers."""
        ...

    def describe(self, config: Mapping[str, Any]) -> ModelDescription:
        """Reads the content of ``config.json``.

        Raises:
            UnsupportedModelError: the config asks for something the handler does not cover.
        """
        ...
