"""What a cost is made of: named parts, each with its time and the formula behind it."""

from typing import Literal

import msgspec


class CostPart(msgspec.Struct, frozen=True, kw_only=True):
    """One contribution to a step.

    Args:
        name: Such as "matrix products", "ep all-to-all", "pipeline bubble".
        total_s: How long it takes by itself, in seconds.
        hidden_s: How many of these seconds run behind other parts, so that they add nothing to the step.
        why: The formula with its numbers, one line.
    """

    name: str
    total_s: float
    hidden_s: float = 0.0
    why: str

    @property
    def exposed_s(self) -> float:
        """What it adds to the step, in seconds."""
        return self.total_s - self.hidden_s


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """One training step.

    Args:
        parts: What it consists of; the exposed times add up to ``step_s``.
        step_s: How long it takes, in seconds.
        rows: Packed rows it computes, over all data-parallel ranks.
        physical_tokens: Tokens it computes.
        logical_tokens: Tokens that its trajectories contain.
        useful_flops: Arithmetic that the step needs, over all GPUs: without recompute, without padding.
        gpus: GPUs it runs on.
        peak_flops: Dense peak of one GPU in the workload's dtype.
    """

    parts: tuple[CostPart, ...]
    step_s: float
    rows: int
    physical_tokens: int
    logical_tokens: int
    useful_flops: float
    gpus: int
    peak_flops: float

    @property
    def tokens_per_s(self) -> float:
        """Physical tokens per second of the whole trainer."""
        return self.physical_tokens / self.step_s

    @property
    def logical_tokens_per_s(self) -> float:
        """Logical tokens per second of the whole trainer."""
        return self.logical_tokens / self.step_s

    @property
    def flops_per_gpu(self) -> float:
        """Useful arithmetic per GPU and second, what papers call model FLOP/s."""
        return self.useful_flops / self.step_s / self.gpus

    @property
    def mfu(self) -> float:
        """Useful arithmetic as a fraction of the GPUs' dense peak (model FLOPs utilization)."""
        return self.flops_per_gpu / self.peak_flops

    def part(self, name: str) -> CostPart:
        """The part of this name.

        Raises:
            KeyError: there is none.
        """
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(name)


class RolloutCost(msgspec.Struct, frozen=True, kw_only=True):
    """The rollouts of one training step on one service.

    Args:
        parts: Of the time to generate all completions of a step; the exposed times add up to ``rollout_s``.
        rollout_s: Time to generate them, in seconds.
        concurrent_sequences: Completions that run at once, over all copies of the service.
        decode_step_s: Time of one engine step in which each running sequence gains one token, in seconds.
        completion_tokens: Tokens generated per step.
        gpus: GPUs of the service.
    """

    parts: tuple[CostPart, ...]
    rollout_s: float
    concurrent_sequences: float
    decode_step_s: float
    completion_tokens: int
    gpus: int

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens per second of the whole service."""
        return self.completion_tokens / self.rollout_s


class LoopCost(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the asynchronous loop: trainer and rollouts run side by side, the slower one sets the pace.

    Args:
        trainer: The training step.
        rollout: The rollouts that feed it.
        publication: Transfer and activation of the new policy, hidden behind the next step as far as it fits.
        step_s: The slower of the two, with what is around a training step, plus what publication exposes; in
            seconds.
        accepted_tokens_per_s: Completion tokens trained on per second.
        waiting: The side that waits for the other.
        idle_s: How long it waits in a step, in seconds.
        gpus: GPUs of both.
        why: Which of the two sets the pace, in one line.
    """

    trainer: StepCost
    rollout: RolloutCost
    publication: CostPart
    step_s: float
    accepted_tokens_per_s: float
    waiting: Literal["trainer", "service"]
    idle_s: float
    gpus: int
    why: str

    @property
    def score(self) -> float:
        """Accepted tokens per second per GPU."""
        return self.accepted_tokens_per_s / self.gpus
