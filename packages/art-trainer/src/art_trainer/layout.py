"""How several Hugging Face linear layers lie inside one fused Megatron layer.

One formula covers every fused layer: the rows of each part are cut into ``groups`` equal runs, and the fused
rows are, group by group, the runs of all parts one after another. Megatron's ``linear_qkv`` has one group per
key/value head, ``linear_fc1`` has a single group (gate, then up), and an unfused layer is one part.

Torch is loaded where tensors are handled, so that a model can be described without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FusedLayout:
    """``names[i]`` is a Hugging Face parameter of ``rows[i]`` rows; ``groups`` divides each count."""

    names: tuple[str, ...]
    rows: tuple[int, ...]
    groups: int = 1

    @property
    def total_rows(self) -> int:
        """Rows of the fused weight."""
        return sum(self.rows)

    def merge(self, parts: "Sequence[Tensor]") -> "Tensor":
        """``[rows[i], ...]`` each to ``[total_rows, ...]``."""
        import torch

        if len(parts) == 1:
            return parts[0]
        return torch.cat([self._runs(part) for part in parts], 1).flatten(0, 1)

    def split(self, fused: "Tensor") -> "list[Tensor]":
        """``[total_rows, ...]`` to ``[rows[i], ...]`` each; the inverse of :meth:`merge`."""
        import torch

        if len(self.rows) == 1:
            return [fused]
        sizes = [rows // self.groups for rows in self.rows]
        runs = torch.split(self._runs(fused), sizes, 1)
        return [run.flatten(0, 1) for run in runs]

    def _runs(self, rows: "Tensor") -> "Tensor":
        return rows.reshape(self.groups, -1, *rows.shape[1:])
