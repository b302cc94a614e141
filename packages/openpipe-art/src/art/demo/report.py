"""What a run shows on the terminal and leaves in its folder.

What always holds: a line of `metrics.jsonl` is written whole, after its step's trajectories; the folder is
named last, however the run ends.
"""

import collections
import contextlib
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

import msgspec

import art
from art.demo.task import REWARDS, word
from art.errors import ConfigError

if TYPE_CHECKING:
    from rich.status import Status

WINDOW = 5
"""Steps that the recent reward is the mean of."""

_QUIET_S = 5.0
_HEADER = (
    "step  reward  answers                         tokens/s  rollout    train  policy  log-prob difference"
)


class RunReport:
    """Owns the run's folder and the terminal while the run lasts; used as a context manager.

    Args:
        name: of the run; part of the default folder's name.
        folder: a folder that does not exist or is empty; by default a new one under ``runs/``.
        settings: kept as ``settings.json``.
        stream: where lines go.

    Raises:
        ConfigError: the folder is in use or cannot be written.
    """

    def __init__(
        self, name: str, folder: Path | None, settings: msgspec.Struct, *, stream: TextIO | None = None
    ) -> None:
        self.folder = (folder or _default_folder(name)).resolve()
        if self.folder.exists() and not (self.folder.is_dir() and not any(self.folder.iterdir())):
            raise ConfigError(f"the run folder {self.folder} is not an empty folder; choose another")
        try:
            (self.folder / "trajectories").mkdir(parents=True)
            (self.folder / "settings.json").write_bytes(
                msgspec.json.format(msgspec.json.encode(settings, enc_hook=str)) + b"\n"
            )
        except OSError as error:
            raise ConfigError(
                f"the run folder {self.folder} cannot be written: {error}; choose another"
            ) from error
        self._stream = stream or sys.stdout
        self._terminal = self._stream.isatty()
        self._status: Status | None = None
        self._started = time.monotonic()
        self._last_progress = self._started
        self._rewards: list[float] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        steps = len(self._rewards)
        elapsed = time.monotonic() - self._started
        how = "ended" if kind is None else "stopped"
        last = self._rewards[-WINDOW:]
        reward = f", mean reward {statistics.fmean(last):.3f} over the last {len(last)}" if last else ""
        if self._terminal and kind is not None:
            self.line("")  # the terminal has written ^C
        self.line(f"{how} after {steps} {'step' if steps == 1 else 'steps'} and {elapsed:.0f} s{reward}")
        self.line(f"run folder: {self.folder}")

    def line(self, text: str) -> None:
        """Prints a line."""
        print(text, file=self._stream, flush=True)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A part of the run that may take long: one line when it is done, :meth:`progress` meanwhile."""
        started = self._last_progress = time.monotonic()
        if self._terminal:
            with _status(name, self._stream) as self._status:
                try:
                    yield
                finally:
                    self._status = None
        else:
            self.line(f"{name} ...")
            yield
        self.line(f"{name}: ready in {time.monotonic() - started:.1f} s")

    def progress(self, text: str) -> None:
        """Shows what goes on: in the phase's line on a terminal, elsewhere as a line every few seconds."""
        if self._status is not None:
            self._status.update(text[: self._status.console.width - 4])
        elif not self._terminal and time.monotonic() - self._last_progress >= _QUIET_S:
            self._last_progress = time.monotonic()
            self.line(f"  {text}")

    def step(
        self,
        step: int,
        groups: Sequence[art.TrajectoryGroup],
        result: art.TrainResult,
        *,
        rollout_s: float,
        train_s: float,
    ) -> None:
        """Reports one finished step: a line, its trajectories, its metrics."""
        items = [item for group in groups for item in group]
        reward = statistics.fmean(item.reward or 0.0 for item in items)
        tokens = sum(item.metrics.get("completion_tokens", 0) for item in items)
        answers = collections.Counter(word(str(item.metadata["answer"])) for item in items)
        self._rewards.append(reward)
        _write_lines(
            self.folder / "trajectories" / f"step-{step:04d}.jsonl",
            [
                _described(item) | {"step": step, "group": index}
                for index, group in enumerate(groups)
                for item in group
            ],
        )
        metrics = {
            **result.metrics,
            "step": step,
            "policy_version": result.step,
            "reward": reward,
            "tokens_per_s": tokens / rollout_s,
            "rollout_s": rollout_s,
            "train_s": train_s,
            "elapsed_s": time.monotonic() - self._started,
        }
        _write_lines(self.folder / "metrics.jsonl", [metrics])
        if step == 1:
            self.line(_HEADER)
        self.line(
            f"{step:4}  {reward:6.3f}  {_counts(answers):30}  {tokens / rollout_s:8.0f}  {rollout_s:5.1f} s"
            f"  {train_s:5.1f} s  {f'v{result.step}':>6}  {_difference(result.metrics)}"
        )

    def recent_reward(self) -> float:
        """Mean reward of the last :data:`WINDOW` steps; 0 before there are that many."""
        return statistics.fmean(self._rewards[-WINDOW:]) if len(self._rewards) >= WINDOW else 0.0

    def held_out(self, trajectories: Sequence[art.Trajectory]) -> None:
        """Reports answers to prompts that were not trained on."""
        _write_lines(
            self.folder / "trajectories" / "held-out.jsonl", [_described(item) for item in trajectories]
        )
        reward = statistics.fmean(item.reward for item in trajectories)
        self.line(f"reward {reward:.3f} over {len(trajectories)} answers to wordings it was not trained on")


def _default_folder(name: str) -> Path:
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _status(name: str, stream: TextIO) -> "Status":
    from rich.console import Console

    return Console(file=stream, highlight=False).status(name)


def _write_lines(path: Path, values: Sequence[Any]) -> None:
    with path.open("ab") as file:
        file.write(msgspec.json.Encoder().encode_lines(values))


def _described(item: art.Trajectory | art.TrajectoryHandle) -> dict[str, Any]:
    """A rollout as one line: what was asked, answered and given for it, by which worker and policy."""
    described: dict[str, Any] = {**item.metadata, "reward": item.reward, "metrics": item.metrics}
    if isinstance(item, art.TrajectoryHandle) and item.ref is not None:
        described |= {
            "record": item.ref.record_id,
            "worker": item.worker,
            "policy_versions": [item.ref.min_version, item.ref.max_version],
        }
    return described


def _counts(answers: collections.Counter[str | None]) -> str:
    """`yes 3  no 1  maybe 0  other 60`."""
    known = [f"{name} {answers[name]:<2}" for name in REWARDS]
    return "  ".join([*known, f"other {answers[None]}"])


def _difference(metrics: dict[str, float]) -> str:
    """How far the trainer's log-probs of the sampled tokens are from the sampler's."""
    mean, p99 = metrics.get("sampler_difference_mean"), metrics.get("sampler_difference_p99")
    if mean is None or p99 is None:
        return "no step taken: equal rewards" if metrics.get("skipped") else "-"
    return f"mean {mean:.1e}  p99 {p99:.1e}"
