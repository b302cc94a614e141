"""What hardware can do: a table of GPUs, links and nodes with the source of every entry.

The numbers are vendors' peaks (dense, without sparsity; links per GPU and per direction) and latencies. What
fraction of a peak is reached is the business of :mod:`art_topology.cost`. The table that comes with the
package is ``hardware.toml``; a file of the same form extends it or replaces single entries.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    """Where numbers come from.

    Args:
        title: Of a document.
        url: Its address.
        note: A remark, such as what was derived from what.
    """

    title: Annotated[str, msgspec.Meta(min_length=1)]
    url: str = ""
    note: str = ""


class GpuModel(Spec, frozen=True, kw_only=True):
    """One kind of GPU.

    Args:
        name: Its name in this table, such as "H200".
        architecture: "ampere", "ada", "hopper" or "blackwell"; kernels differ by it.
        aliases: Other names for it, such as the driver's.
        memory_bytes: Memory that the driver reports, in bytes.
        memory_bandwidth_bytes_per_s: Peak bandwidth of that memory.
        peak_flops: Dense peak of matrix arithmetic per format, in FLOP/s; a format it cannot do is left out.
        sustained: Share of that peak which its power leaves to large products, over the share of other GPUs
            of its architecture.
        source: Where the numbers come from.
    """

    name: Name
    architecture: Literal["ampere", "ada", "hopper", "blackwell", "other"] = "other"
    aliases: tuple[str, ...] = ()
    memory_bytes: Count
    memory_bandwidth_bytes_per_s: Positive
    peak_flops: dict[ComputeDtype, Positive]
    sustained: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    source: Source

    def flops(self, dtype: ComputeDtype) -> float:
        """Dense peak in the format ``dtype``, in FLOP/s.

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
        host_memory_bytes: Memory of the host, in bytes; None: not known, so that nothing can be offloaded.
        source: Where the numbers come from.
    """

    name: Name
    gpu: Name
    gpus_per_host: Count
    scale_up: Name
    scale_up_gpus: Count
    scale_out: Name
    host_link: Name
    host_memory_bytes: Count | None = None
    source: Source


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A node with its GPU and links looked up: what the cost model computes with, as
    :meth:`HardwareTable.machine` finds it.

    Args:
        name: The node's.
        gpu: Its kind of GPU.
        gpus_per_host: How many it has.
        scale_up: The link among GPUs near each other.
        scale_up_gpus: How many GPUs that link joins.
        scale_out: The link to all other GPUs.
        host_link: The link between a GPU and host memory.
        host_memory_bytes: Memory of the host, in bytes; None: not known.
    """

    name: str
    gpu: GpuModel
    gpus_per_host: int
    scale_up: LinkModel
    scale_up_gpus: int
    scale_out: LinkModel
    host_link: LinkModel
    host_memory_bytes: int | None = None


class HardwareTable(Spec, frozen=True, kw_only=True):
    """GPUs, links and nodes by name. Every name that a node gives is in the table.

    Args:
        gpus: Kinds of GPUs.
        links: Kinds of links.
        nodes: Kinds of hosts, which name the others.

    Raises:
        SpecError: a node names a GPU or a link that is not in the table, or a link of the wrong kind.
    """

    gpus: dict[str, GpuModel]
    links: dict[str, LinkModel]
    nodes: dict[str, NodeModel]

    def __post_init__(self) -> None:
        super().__post_init__()
        for node in self.nodes.values():
            _check_node(node, self.gpus, self.links)

    def gpu(self, name: str) -> GpuModel:
        """The GPU of this name or alias, whatever the case, "-", "_" and spaces.

        Raises:
            SpecError: there is none; the message lists those there are.
        """
        wanted = _plain(name)
        for gpu in self.gpus.values():
            if wanted in map(_plain, (gpu.name, *gpu.aliases)):
                return gpu
        raise SpecError(
            f"no GPU {name!r} in the hardware table; it has {', '.join(self.gpus)}. "
            "a file adds others (--hardware, load_hardware)"
        )

    def machine(self, name: str) -> Machine:
        """The node of this name, or the first node with the GPU of this name, its GPU and links looked up.

        Raises:
            SpecError: there is neither; the message lists those there are.
        """
        node = next((node for node in self.nodes.values() if _plain(node.name) == _plain(name)), None)
        if node is None:
            gpu = self.gpu(name)
            node = next((node for node in self.nodes.values() if node.gpu == gpu.name), None)
            if node is None:
                raise SpecError(f"GPU {gpu.name!r} is in the hardware table, but no node has it; add one")
        return Machine(
            name=node.name,
            gpu=self.gpus[node.gpu],
            gpus_per_host=node.gpus_per_host,
            scale_up=self.links[node.scale_up],
            scale_up_gpus=node.scale_up_gpus,
            scale_out=self.links[node.scale_out],
            host_link=self.links[node.host_link],
            host_memory_bytes=node.host_memory_bytes,
        )


@cache
def default_hardware() -> HardwareTable:
    """The table that comes with the package."""
    from importlib.resources import files

    text = files("art_topology").joinpath("hardware.toml").read_text(encoding="utf-8")
    return parse_hardware(text, base=HardwareTable(gpus={}, links={}, nodes={}))


def load_hardware(path: str | Path, *, base: HardwareTable | None = None) -> HardwareTable:
    """Reads a file in the form of ``hardware.toml`` and adds it to ``base``, by default the package's table.
    An entry with a name that ``base`` has replaces it.

    Raises:
        OSError: the file cannot be read, is no regular file, or has more than 64 MiB.
        SpecError: it is not TOML, an entry is malformed or incomplete, or a node names a GPU or link that
            is not in the table. The message begins with ``path:line:`` where the place is known.
    """
    from pathlib import Path

    from art_topology.readers import normalized
    from art_topology.reading import read_regular

    path = Path(path)
    data = read_regular(path)
    try:
        text = normalized(data.decode())
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{path}: not UTF-8: byte {data[error.start]:#04x} at offset {error.start}"
        ) from error
    return parse_hardware(text, base=base, name=str(path))


def parse_hardware(
    text: str, *, base: HardwareTable | None = None, name: str = "<hardware>"
) -> HardwareTable:
    """As :func:`load_hardware`, from the text of a file.

    Args:
        text: TOML.
        base: What it is added to; by default the package's table.
        name: What messages call it.

    Raises:
        SpecError: as :func:`load_hardware`.
    """
    import tomllib

    base = default_hardware() if base is None else base
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        raise SpecError(
            f"{name}:{line[1] if line else text.count(chr(10)) + 1}: not TOML: {error}"
        ) from error
    tables: dict[str, dict[str, Any]] = {kind: dict(getattr(base, kind)) for kind in _KINDS}
    for kind, entries in values.items():
        if kind not in _KINDS or not isinstance(entries, dict):
            where = _line(text, (kind,))
            raise SpecError(
                f"{name}:{where}: a hardware file has the tables {', '.join(_KINDS)}, not {kind!r}"
            )
        for key, fields in entries.items():
            tables[kind][key] = _entry(kind, key, fields, text, name)
    for key in values.get("nodes", {}):
        try:
            _check_node(tables["nodes"][key], tables["gpus"], tables["links"])
        except _NodeError as error:
            raise SpecError(f"{name}:{_line(text, ('nodes', key, error.field))}: {error}") from None
    return HardwareTable(**tables)


class _NodeError(SpecError):
    """A node that names something the table lacks."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


_KINDS: dict[str, type[Spec]] = {"gpus": GpuModel, "links": LinkModel, "nodes": NodeModel}


def _entry(kind: str, key: str, fields: Any, text: str, name: str) -> Any:
    if not isinstance(fields, dict):
        raise SpecError(f"{name}:{_line(text, (kind, key))}: {kind}.{key} is a table of fields")
    if "name" in fields:
        where = _line(text, (kind, key, "name"))
        raise SpecError(f"{name}:{where}: {kind}.{key}: the name stands in the header, not in a field")
    from art_topology.positions import place_of
    from art_topology.validation import explain

    values = fields | {"name": key}
    found = explain(values, _KINDS[kind])
    if found:
        told = []
        for each in found:
            field = place_of(each.path)[:1]
            where = _line(text, (kind, key, *map(str, field)))
            told.append(f"{name}:{where}: {kind}.{key}: {each.message}; {each.hint}")
        raise SpecError("\n".join(told))
    return msgspec.convert(values, _KINDS[kind])


def _check_node(node: NodeModel, gpus: dict[str, GpuModel], links: dict[str, LinkModel]) -> None:
    if node.gpu not in gpus:
        raise _NodeError(f"node {node.name!r} has GPU {node.gpu!r}, which is not in the table", "gpu")
    for field, kinds in _LINK_KINDS.items():
        link = links.get(getattr(node, field))
        if link is None:
            raise _NodeError(
                f"node {node.name!r} has {field} {getattr(node, field)!r}, which is not among the links",
                field,
            )
        if link.kind not in kinds:
            raise _NodeError(
                f"{field} of node {node.name!r} is {link.name!r} of kind {link.kind!r}; "
                f"it is one of kind {' or '.join(kinds)}",
                field,
            )


_LINK_KINDS: dict[str, tuple[str, ...]] = {
    "scale_up": ("nvlink", "pcie"),
    "scale_out": ("network", "nvlink"),
    "host_link": ("host", "pcie"),
}


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower().removeprefix("nvidia")


def _line(text: str, place: tuple[str, ...]) -> int:
    """The line of a table header, or of a key below it; the header's where the key has no line of its own."""
    header = re.compile(
        r"\s*\[\s*" + r"\s*\.\s*".join(rf"[\"']?{re.escape(p)}[\"']?" for p in place[:2]) + r"\s*[\].]"
    )
    found = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if header.match(line):
            found = found or number
            if len(place) < 3:
                break
        elif found and line.lstrip().startswith("["):
            break
        elif found and re.match(rf"\s*[\"']?{re.escape(place[2])}[\"']?\s*[.=]", line):
            return number
    return found or 1
