"""Steps of both loops side by side, and what follows from them."""

import statistics
from collections.abc import Sequence
from importlib.metadata import version

import msgspec
from benchmarks.first_loop.counts import Counts
from benchmarks.first_loop.messages import PlainResult
from benchmarks.first_loop.ours import OurStep
from benchmarks.table import Row, compare

HEADER = (
    "          ------------ plain loop -----------   --------------- ART ---------------\n"
    "step   sampling  training      step  reward     rollout  training      step  reward   ratio"
)


class Pair(msgspec.Struct, frozen=True):
    """One step of both, and what it needs at least."""

    ours: OurStep
    plain: PlainResult
    counts: Counts

    @property
    def ours_s(self) -> float:
        """Seconds of ART's step."""
        return self.ours.rollout_s + self.ours.train_s

    @property
    def plain_s(self) -> float:
        """Seconds of the plain loop's step."""
        return self.plain.sampling_s + self.plain.training_s

    @property
    def ratio(self) -> float:
        """How many times as long the plain loop took."""
        return self.plain_s / self.ours_s


class Summary(msgspec.Struct, frozen=True):
    """Medians over steps: of all, and of those in which both trained.

    ``sampling_ratio`` and ``training_ratio`` are of the halves, the latter over steps in which both trained.
    """

    steps: int
    ratio: float
    ratio_lowest: float
    both_trained: int
    ratio_both_trained: float | None
    sampling_ratio: float
    training_ratio: float | None
    ours_s: float
    plain_s: float
    ours_rollout_s: float
    ours_train_s: float | None
    plain_sampling_s: float
    plain_training_s: float | None


def line(pair: Pair) -> str:
    """One row of the table."""
    plain, ours = pair.plain, pair.ours
    return (
        f"{ours.step:4}   {plain.sampling_s:6.2f} s  {_training(plain.training_s, plain.trained)}  "
        f"{pair.plain_s:6.2f} s   {plain.reward:.3f}    {ours.rollout_s:6.2f} s  "
        f"{_training(ours.train_s, ours.trained)}  {pair.ours_s:6.2f} s   {ours.reward:.3f}   "
        f"{pair.ratio:4.2f}x"
    )


def _training(seconds: float, trained: bool) -> str:
    return f"{seconds:6.2f} s" if trained else "    none"


def summarize(pairs: Sequence[Pair]) -> Summary:
    """Medians over ``pairs``, at least one."""
    both = [pair for pair in pairs if pair.ours.trained and pair.plain.trained]
    return Summary(
        steps=len(pairs),
        ratio=statistics.median(pair.ratio for pair in pairs),
        ratio_lowest=min(pair.ratio for pair in pairs),
        both_trained=len(both),
        ratio_both_trained=_median([pair.ratio for pair in both]),
        sampling_ratio=statistics.median(pair.plain.sampling_s / pair.ours.rollout_s for pair in pairs),
        training_ratio=_median([pair.plain.training_s / pair.ours.train_s for pair in both]),
        ours_s=statistics.median(pair.ours_s for pair in pairs),
        plain_s=statistics.median(pair.plain_s for pair in pairs),
        ours_rollout_s=statistics.median(pair.ours.rollout_s for pair in pairs),
        ours_train_s=_median([pair.ours.train_s for pair in both]),
        plain_sampling_s=statistics.median(pair.plain.sampling_s for pair in pairs),
        plain_training_s=_median([pair.plain.training_s for pair in both]),
    )


def rows(pairs: Sequence[Pair]) -> list[Row]:
    """The rows of the table of all benchmarks."""
    peer = f"transformers {version('transformers')}"
    found = [
        compare(
            f"step of `art demo`, {len(pairs)} steps",
            peer,
            [pair.ours_s for pair in pairs],
            [pair.plain_s for pair in pairs],
            unit="s",
            aim=3.0,
            note=f"a plain loop of transformers and peft {version('peft')}, mended where it was slow; "
            "the same samples, weights, dtype and threads; float32 on processors",
        ),
        compare(
            "  its rollout",
            peer,
            [pair.ours.rollout_s for pair in pairs],
            [pair.plain.sampling_s for pair in pairs],
            unit="s",
            note="64 answers to 4 prompts",
        ),
    ]
    both = [pair for pair in pairs if pair.ours.trained and pair.plain.trained]
    if both:
        found.append(
            compare(
                "  its training",
                peer,
                [pair.ours.train_s for pair in both],
                [pair.plain.training_s for pair in both],
                unit="s",
                note="until the new policy is active in the server; steps in which both trained",
            )
        )
    return found


def parts(pairs: Sequence[Pair]) -> str:
    """Where ART's step goes, as lines: medians over the steps in which it trained."""
    trained = [pair.ours for pair in pairs if pair.ours.trained]
    if not trained:
        return "ART took no step"

    def median(*names: str) -> float:
        return statistics.median(sum(step.metrics.get(name, 0.0) for name in names) for step in trained)

    rollout = statistics.median(step.rollout_s for step in trained)
    whole = statistics.median(step.train_s for step in trained)
    stages = {
        "packing": median("pack_fetch_s", "pack_plan_s", "pack_write_s", "train_map_s"),
        "forward and backward": median("train_forward_backward_s"),
        "optimizer": median("train_optimizer_s"),
        "snapshot": median("train_snapshot_s"),
        "activation": median("publish_s"),
    }
    lines = [
        f"ART's steps that trained, medians: rollout {1e3 * rollout:.0f} ms, training {1e3 * whole:.0f} ms"
    ]
    lines += [f"  {1e3 * seconds:7.1f} ms  {name}" for name, seconds in stages.items()]
    lines.append("processor time of a step, both processors together:")
    for part in sorted({name for step in trained for name in step.processor_s} - {"plain loop"}):
        used = statistics.median(step.processor_s.get(part, 0.0) for step in trained)
        lines.append(f"  {1e3 * used:7.0f} ms  {part}")
    return "\n".join(lines)


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def text(summary: Summary) -> str:
    """The summary as lines."""
    lines = [
        f"median over steps 1 to {summary.steps}: the plain loop took {summary.ratio:.2f} times as long "
        f"({summary.plain_s:.2f} s and {summary.ours_s:.2f} s; lowest ratio {summary.ratio_lowest:.2f})",
        f"  sampling {summary.sampling_ratio:.2f} times ({summary.plain_sampling_s:.2f} s and "
        f"{summary.ours_rollout_s:.2f} s)",
    ]
    if summary.ratio_both_trained is not None:
        lines += [
            f"  training {summary.training_ratio:.2f} times ({summary.plain_training_s:.2f} s and "
            f"{summary.ours_train_s:.2f} s), over the {summary.both_trained} steps in which both trained",
            f"  whole steps in which both trained: {summary.ratio_both_trained:.2f} times",
        ]
    return "\n".join(lines)
