"""What hardware can do: a table of GPUs, links and nodes with the source of every entry.

The numbers are vendors' peaks (dense, without sparsity; links per GPU and per direction) and measured latencies.
What fraction of a peak is reached is the business of :mod:`art_topology.cost`. The table that comes with the
package is ``hardware.toml``; a file of the same form extends it or replaces single entries.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from art_topology.spec import Count, Name, Spec, SpecError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "ComputeDtype",
    "GpuModel",
    "HardwareTable",
    "LinkModel",
    "Machine",
    "NodeModel",
    "Source",
    "default_hardware",
    "load_hardware",
    "parse_hardware",
]

ComputeDtype = Literal["bfloat16", "float16", "float32", "tf32", "fp8", "fp4"]
"""Formats of matrix arithmetic. ``float32`` is without tensor cores."""
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class Source(Spec, frozen=True, kw_only=True):
    """Where numbers come from: the title of a document, its address, and a remark."""

    title: Annotated[str, msgspec.Meta(min_length=1)]
    url: str = ""
    note: str = ""


class GpuModel(Spec, frozen=True, kw_only=True):
    """One kind of GPU.

    Args:
        name: Its name in this table, such as "H200".
        architecture: "ampere", "ada", "hopper" or "blackwell"; kernels differ by it.
        memory_bytes: Memory that the driver reports, in bytes.
        memory_bandwidth_bytes_per_s: Peak bandwidth of that memory.
        peak_flops: Dense peak of matrix arithmetic per format, in FLOP/s; a format it cannot do is left out.
        source: Where the numbers come from.
    """

    name: Name
    architecture: Literal["ampere", "ada", "hopper", "blackwell", "other"] = "other"
    memory_bytes: Count
    memory_bandwidth_bytes_per_s: Positive
    peak_flops: dict[ComputeDtype, Positive]
    source: Source

    def flops(self, dtype: ComputeDtype) -> float:
        """Dense peak in one format, in FLOP/s.

        Raises:
            SpecError: the GPU has no arithmetic in this format.
        """
        if dtype not in self.peak_flops:
            raise SpecError(f"GPU {self.name!r} has no peak for {dtype}; it has {', '.join(self.peak_flops)}")
        return self.peak_flops[dtype]


class LinkModel(Spec, frozen=True, kw_only=True):
    """One kind of link.

    Args:
        name: Its name in this table, such as "NVLink4".
        kind: What it joins: GPUs ("nvlink", "pcie"), hosts ("network"), or a GPU with host memory ("host").
        bandwidth_bytes_per_s: Peak per GPU and per direction.
        latency_s: Time of one message of no length, per step of a collective (the alpha of alpha-beta).
        source: Where the numbers come from.
    """

    name: Name
    kind: Literal["nvlink", "pcie", "network", "host"]
    bandwidth_bytes_per_s: Positive
    latency_s: NotNegative
    source: Source


class NodeModel(Spec, frozen=True, kw_only=True):
    """One kind of host: its GPUs and the links between them.

    Args:
        name: Its name in this table, such as "HGX-B300".
        gpu: Name of its GPUs.
        gpus_per_host: How many it has.
        scale_up: Name of the link among GPUs near each other.
        scale_up_gpus: How many GPUs the scale-up link joins; more than ``gpus_per_host`` where racks are
            joined.
        scale_out: Name of the link to all other GPUs.
        host_link: Name of the link between a GPU and host memory.
        source: Where the numbers come from.
    """

    name: Name
    gpu: Name
    gpus_per_host: Count
    scale_up: Name
    scale_up_gpus: Count
    scale_out: Name
    host_link: Name
    source: Source


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A node with its GPU and links looked up: what the cost model computes with."""

    name: str
    gpu: GpuModel
    gpus_per_host: int
    scale_up: LinkModel
    scale_up_gpus: int
    scale_out: LinkModel
    host_link: LinkModel


class HardwareTable(Spec, frozen=True, kw_only=True):
    """GPUs, links and nodes by name. Every name that a node gives is in the table."""

    gpus: dict[str, GpuModel]
    links: dict[str, LinkModel]
    nodes: dict[str, NodeModel]

    def gpu(self, name: str) -> GpuModel:
        """The GPU of this name, in any spelling of case, "-" and "_".

        Raises:
            SpecError: there is none; the message lists those there are.
        """
        raise NotImplementedError

    def machine(self, name: str) -> Machine:
        """The node of this name, or the usual node of the GPU of this name, with GPU and links looked up.

        Raises:
            SpecError: there is neither; the message lists those there are.
        """
        raise NotImplementedError


@cache
def default_hardware() -> HardwareTable:
    """The table that comes with the package."""
    raise NotImplementedError


def load_hardware(path: str | Path, *, base: HardwareTable | None = None) -> HardwareTable:
    """Reads a file in the form of ``hardware.toml`` and adds it to ``base``, by default the package's table. An
    entry with a name that ``base`` has replaces it.

    Raises:
        OSError: the file cannot be read.
        SpecError: it is not TOML, an entry is malformed or incomplete, or a node names a GPU or link that is not
            in the table. The message gives path, line and entry.
    """
    raise NotImplementedError


def parse_hardware(text: str, *, base: HardwareTable | None = None) -> HardwareTable:
    """The same from the text of a file.

    Raises:
        SpecError: as :func:`load_hardware`.
    """
    raise NotImplementedError
