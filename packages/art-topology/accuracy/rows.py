"""The rows: what was measured, where it is published, and under which settings. Nothing here predicts."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from art_topology.workload import Recompute

HERE = Path(__file__).parent
Kind = Literal["parameters", "memory", "step_time", "rl_step"]
Set = Literal["calibrate", "score"]
UNIT_BYTES = {"bytes": 1, "GiB": 1 << 30}


class RowError(ValueError):
    """A row or source lacks a field, contradicts itself, or names what does not exist."""


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of the axes. ``stages``: "uniform", "balanced", "first=5,last=5" or "runs=14,16,..."."""

    tp: int
    cp: int
    pp: int
    vpp: int
    ep: int
    etp: int
    dp: int
    stages: str = "uniform"

    def __str__(self) -> str:
        sizes = [(name, getattr(self, name)) for name in ("tp", "cp", "pp", "vpp", "ep", "etp", "dp")]
        return " ".join(f"{name.upper()}{size}" for name, size in sizes if size > 1) or "one GPU"


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One publication; ``found`` says where its text was read, ``set`` what all its rows are used for."""

    id: str
    set: Set
    title: str
    url: str
    found: str


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measurement. Fields that a kind needs are in ``NEEDED``.

    Args:
        where: Table or field of the source.
        measures: Of memory: "peak_allocated" (torch's maximum) or "allocated" (between steps).
        overrides: Fields of the configuration that differ, such as fewer layers.
        sequence_length: Tokens of one sequence; a micro batch is a packed row of ``micro_batch`` of them.
        recompute_given: The source states the recomputation; else it is taken as written here.
        pp_rank: The pipeline stage that was measured; by default the fullest.
        attention: How its core is computed; "unfused" reads and writes the whole matrix of scores.
        not_parameters: Elements of the checkpoint that are no parameters.
    """

    id: str
    where: str
    kind: Kind
    model: str
    measured: float
    unit: Literal["parameters", "bytes", "GiB", "s"]
    machine: str | None = None
    gpus: int | None = None
    layout: Layout | None = None
    sequence_length: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    recompute: Recompute | None = None
    recompute_given: bool | None = None
    dtype: Literal["bfloat16"] | None = None
    measures: Literal["peak_allocated", "allocated"] | None = None
    overrides: dict[str, int] = {}
    lora_rank: int | None = None
    lora_targets: tuple[Literal["attention", "mlp", "experts"], ...] = ("attention", "mlp", "experts")
    mtp_layers: int = 0
    pp_rank: int | None = None
    dropout: bool = False
    sequence_parallel: bool = True
    dispatcher: Literal["fused", "all_to_all"] = "fused"
    expert_overlap: bool = False
    cuda_graphs: Literal["none", "router", "attention"] = "none"
    gradient_bytes: int = 4
    recomputed: tuple[Literal["core_attention", "norms", "activations", "mla_up"], ...] = ("core_attention",)
    attention: Literal["flash", "unfused"] = "flash"
    include_mtp: bool = False
    not_parameters: int = 0
    generation_tp: int | None = None
    mean_sequence_length: int | None = None
    samples: int | None = None
    note: str = ""
    source: Source | None = None

    @property
    def set(self) -> Set:
        """The set of its source."""
        assert self.source is not None
        return self.source.set

    @property
    def value(self) -> float:
        """What was measured: parameters, bytes or seconds."""
        return self.measured * UNIT_BYTES.get(self.unit, 1)


class SourceFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of ``rows/``."""

    source: Source
    rows: tuple[Row, ...]


class Excluded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was left out, and the rule."""

    what: str
    why: str


RUN = (
    "machine", "gpus", "layout", "sequence_length", "global_batch", "micro_batch", "recompute",
    "recompute_given", "dtype",
)  # fmt: skip
NEEDED: dict[str, tuple[str, ...]] = {
    "parameters": (),
    "memory": (*RUN, "measures"),
    "step_time": RUN,
    "rl_step": (*RUN, "generation_tp", "mean_sequence_length", "samples"),
}
UNITS = {"parameters": {"parameters"}, "memory": {"bytes", "GiB"}, "step_time": {"s"}, "rl_step": {"s"}}


def load_rows(folder: Path = HERE / "rows") -> tuple[Row, ...]:
    """All rows, in the order of their files, each with its source.

    Raises:
        RowError: a file does not have this form, or a row is incomplete or contradicts itself.
    """
    rows: list[Row] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            file = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), SourceFile)
        except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            raise RowError(f"{path.name}: {error}") from error
        if file.source.id != path.stem:
            raise RowError(f"{path.name}: its source is called {file.source.id!r}")
        rows += [_checked(msgspec.structs.replace(row, source=file.source)) for row in file.rows]
    ids = [row.id for row in rows]
    repeated = sorted({name for name in ids if ids.count(name) > 1})
    if repeated:
        raise RowError(f"rows with one id: {', '.join(repeated)}")
    return tuple(rows)


def load_excluded(path: Path = HERE / "excluded.toml") -> tuple[Excluded, ...]:
    """What was left out."""
    return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8"))["excluded"], tuple[Excluded, ...])


def scored_digest(rows: tuple[Row, ...]) -> str:
    """SHA-256 over ids and measured values of the scored rows: none can be dropped or changed unnoticed."""
    lines = [f"{row.id} {row.kind} {row.measured!r} {row.unit}" for row in rows if row.set == "score"]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _checked(row: Row) -> Row:
    missing = [name for name in NEEDED[row.kind] if getattr(row, name) is None]
    missing += [name for name in ("id", "where", "model") if not getattr(row, name)]
    if missing:
        raise RowError(f"row {row.id!r} lacks {', '.join(missing)}")
    if row.unit not in UNITS[row.kind] or row.measured <= 0:
        raise RowError(f"row {row.id!r}: {row.measured} {row.unit} is no measurement of {row.kind}")
    if not (HERE / "models" / f"{row.model}.json").exists():
        raise RowError(f"row {row.id!r}: there is no models/{row.model}.json")
    layout = row.layout
    if layout is not None and row.gpus is not None and row.global_batch is not None and row.micro_batch:
        if layout.tp * layout.cp * layout.pp * layout.dp != row.gpus:
            raise RowError(f"row {row.id!r}: {layout} is not {row.gpus} GPUs")
        if row.kind != "rl_step" and row.global_batch % (row.micro_batch * layout.dp):
            raise RowError(
                f"row {row.id!r}: {row.global_batch} sequences are not whole micro batches of "
                f"{row.micro_batch} on {layout.dp} data-parallel copies"
            )
    return row
