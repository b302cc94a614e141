"""The step at work: its numbers, as they come."""

import statistics
import time
from collections.abc import Sequence

from art.reporting.run_folder import StepLine
from art.reporting.trajectory_lines import completion_tokens, sampled_by
from art.train_config import TrainResult
from art.trajectories import Rollout, rewards_of


class OpenStep:
    """Begins with its rollouts; once they are there (``is_sampled``) their rewards are known.

    Args:
        number: from 1.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.rewards: list[float] = []
        self.reward = 0.0
        self.sampled_by: tuple[int, int] | None = None
        self.summary = ""
        self._tokens: float | None = None
        self._rollout_s = 0.0
        self._started = time.monotonic()
        self._training_since: float | None = None

    @property
    def is_sampled(self) -> bool:
        """Whether the rollouts are there and kept."""
        return self._training_since is not None

    @property
    def doing(self) -> str:
        """What is at work, in words."""
        return f"step {self.number}, {'training' if self.is_sampled else 'sampling'}"

    def rollouts_are_there(self) -> None:
        """The time of the rollouts ends here."""
        self._rollout_s = time.monotonic() - self._started

    def sampled(self, items: Sequence[Rollout], summary: str) -> None:
        """The rollouts are kept, at least one with a reward; the time of training begins here."""
        self.rewards = rewards_of(items)
        self.reward = statistics.fmean(self.rewards)
        tokens = [count for item in items if (count := completion_tokens(item)) is not None]
        self._tokens = sum(tokens) if tokens else None
        self.sampled_by = sampled_by(items)
        self.summary = summary
        self._training_since = time.monotonic()

    def line(self, result: TrainResult, elapsed_s: float) -> StepLine:
        """What is kept of the step that led to ``result``, ``elapsed_s`` after the run's start."""
        assert self._training_since is not None
        line = {
            **result.metrics,
            "step": float(self.number),
            "policy_version": float(result.step),
            "reward": self.reward,
            "rollout_s": self._rollout_s,
            "train_s": time.monotonic() - self._training_since,
            "elapsed_s": elapsed_s,
        }
        if self._tokens is not None:
            line["tokens_per_s"] = self._tokens / self._rollout_s
        return line
