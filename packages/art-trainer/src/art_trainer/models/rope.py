"""The rotary embedding from a config; parameters that are not covered are refused by name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

from art_trainer.errors import UnsupportedModelError

_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_KEYS: dict[str, tuple[str, ...]] = {"default": (), "llama3": _LLAMA3}
"""Per covered kind the keys it needs, besides ``rope_theta``."""


@dataclass(frozen=True)
class Rope:
    """A rotary embedding.

    Args:
        theta: its base.
        width: of a head; all of it is rotated.
        llama3: Llama 3.1's rule for long contexts by the names of its keys; empty without it.
    """

    theta: float
    width: int
    llama3: Mapping[str, float] = field(default_factory=dict)

    def inverse_frequencies(self) -> "Tensor":
        """float32 ``[width / 2]``."""
        import torch  # here, so that a config can be described without it

        exponents = torch.arange(0, self.width, 2, dtype=torch.float32) / self.width
        plain: Tensor = 1.0 / (self.theta**exponents)
        return _llama3_scaling(plain, self.llama3) if self.llama3 else plain


def read_rope(config: Mapping[str, Any], width: int, default_theta: float | None) -> Rope:
    """Reads ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before).

    Args:
        config: of the model.
        width: of a head; all of it is rotated.
        default_theta: the base where the config has none; None if it has to have one.

    Raises:
        UnsupportedModelError: another kind than ``default`` and ``llama3``, a key that would change the
            result and is not covered, or a key that is missing.
    """
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = rope.pop("rope_theta", None) or config.get("rope_theta") or default_theta
    kinds = rope.pop("rope_type", None), rope.pop("type", None)  # newer and older name of the same
    kind = kinds[0] or kinds[1] or "default"
    partial = rope.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0
    if theta is None:
        raise UnsupportedModelError("config.json has no rope_theta, and programs differ in what they assume")
    if kind not in _KEYS:
        raise UnsupportedModelError(f"rope type is {kind!r}; this version covers {_listed(_KEYS)}")
    if partial != 1.0:
        raise UnsupportedModelError(f"partial_rotary_factor is {partial}; this version rotates whole heads")
    missing = [name for name in _KEYS[kind] if rope.get(name) is None]
    if missing:
        raise UnsupportedModelError(f"rope type {kind!r} needs {', '.join(missing)}, which config.json lacks")
    # The default kind reads none of the Llama 3 keys, in any program; any other key may mean something.
    other = sorted(name for name, value in rope.items() if value is not None and name not in _LLAMA3)
    if other:
        raise UnsupportedModelError(f"the rope parameters {', '.join(other)} are not covered by this version")
    return Rope(theta, width, {name: rope[name] for name in _KEYS[kind]})


def _llama3_scaling(plain: "Tensor", rope: Mapping[str, float]) -> "Tensor":
    """Llama 3.1's rule: long wavelengths are divided by ``factor``, short ones kept, others between."""
    low, high, original = (
        rope[name] for name in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    turns = original * plain / (2 * math.pi)  # rotations within the original context
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    scaled: Tensor = plain * (kept + (1 - kept) / rope["factor"])
    return scaled


def _listed(names: Mapping[str, Any]) -> str:
    return " and ".join(repr(name) for name in names)
