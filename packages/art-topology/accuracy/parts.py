"""What each part of the cost model is worth: the errors without it, all else as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log1p
from statistics import mean

import msgspec

from accuracy.predict import machine_of, step_of, workload_of
from accuracy.rows import Row
from art_topology.cost import Calibration
from art_topology.cost.calibration import ByArchitecture, everywhere

FACTS = ("dispatcher", "expert_overlap", "cuda_graphs", "recomputed", "sequence_parallel", "gradient_bytes")


class Without(msgspec.Struct, frozen=True, kw_only=True):
    """Mean absolute errors of the times of training steps with something left out.

    Args:
        what: What is left out.
        calibration: Mean over the calibration rows.
        dense: Over the scored rows of dense models.
        experts: Over the scored rows of models with experts.
    """

    what: str
    calibration: float
    dense: float
    experts: float


def _values(**changes: float | ByArchitecture) -> Callable[[Row], float]:
    values = msgspec.structs.replace(Calibration(), **changes)
    return lambda row: step_of(row, workload_of(row), values=values).error


def _plain(row: Row) -> float:
    defaults = {field.name: field.default for field in msgspec.structs.fields(Row) if field.name in FACTS}
    return step_of(msgspec.structs.replace(row, **defaults), workload_of(row)).error


def _full_power(row: Row) -> float:
    assert row.machine is not None
    machine = machine_of(row.machine)
    gpu = msgspec.structs.replace(machine.gpu, sustained=1.0)
    return step_of(row, workload_of(row), machine=msgspec.structs.replace(machine, gpu=gpu)).error


VARIANTS: tuple[tuple[str, Callable[[Row], float]], ...] = (
    ("nothing", _values()),
    ("what the sources say of their programs (all rows run ART's)", _plain),
    ("launches of expert layers: 80 of 5 us each, as in the first round",
     _values(launch_s=5e-6, expert_launches=40)),
    ("the wait for the counts of a plain dispatch", _values(counts_s=0.0)),
    ("biases and clamped activations of experts", _values(bias_passes=0.0)),
    ("the power limit of GB200", _full_power),
    ("short sums", _values(product_depth=0.0)),
)  # fmt: skip

TRIED: tuple[tuple[str, Callable[[Row], float]], ...] = (
    ("nothing", _values()),
    ("0.72 of the peak for products on Blackwell, not 0.68",
     _values(matmul_fraction=everywhere(0.68, blackwell=0.72))),
    ("0.60 of the peak for products on Ampere, not 0.68",
     _values(matmul_fraction=everywhere(0.68, ampere=0.60))),
    ("14 passes of other kernels over the hidden state, not 10", _values(kernel_passes=14.0)),
    ("24 passes", _values(kernel_passes=24.0)),
)  # fmt: skip


def tried(rows: Sequence[Row]) -> tuple[tuple[str, float], ...]:
    """Constants that were left out, each with the mean absolute logarithmic error of the calibration rows."""
    chosen = [row for row in rows if row.kind == "step_time" and row.set == "calibrate"]
    return tuple((what, mean(abs(log1p(error(row))) for row in chosen)) for what, error in TRIED)


def parts(rows: Sequence[Row], experts: Callable[[Row], bool]) -> tuple[Without, ...]:
    """The errors without each part."""
    chosen = [row for row in rows if row.kind == "step_time"]
    found = []
    for what, error in VARIANTS:
        errors = [(row, abs(error(row))) for row in chosen]
        scored = [(row, value) for row, value in errors if row.set == "score"]
        found.append(
            Without(
                what=what,
                calibration=mean(value for row, value in errors if row.set == "calibrate"),
                dense=mean(value for row, value in scored if not experts(row)),
                experts=mean(value for row, value in scored if experts(row)),
            )
        )
    return tuple(found)
