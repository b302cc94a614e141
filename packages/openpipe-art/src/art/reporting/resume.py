"""Where a run goes on that was stopped or killed: arithmetic on what its folder holds.

A step's line is written before the next step begins, and its generation becomes durable beside the next
steps. So what a kill leaves is one of three things: generations that lag behind the lines (the steps that
they lack are lost and rolled back), generations that agree with them, or one generation more than there are
lines (the step was trained, its line was lost, and is written again).
"""

from collections.abc import Sequence

import msgspec

from art.errors import ConfigError
from art.reporting.run_folder import StepLine


class ResumePoint(msgspec.Struct, frozen=True):
    """Where a run goes on.

    What always holds: the kept lines and the restored one are steps 1 to ``steps_done``, no step among them
    has a version above ``policy_version``, and the last has exactly it.

    Args:
        kept: how many lines stay, from the first.
        restored: the step whose line has to be written again, if one was lost.
        policy_version: of the newest generation, 0 without one.
    """

    kept: int
    restored: int | None
    policy_version: int

    @property
    def steps_done(self) -> int:
        """Steps that are not taken again."""
        return self.kept + (self.restored is not None)


def resume_point(steps: Sequence[StepLine], newest: int) -> ResumePoint:
    """Where a run goes on whose lines are ``steps`` and whose newest generation is of version ``newest``.

    Raises:
        ConfigError: no kill leaves this: the lines are not steps 1, 2, 3 ..., or there is more than one
            generation that no line leads to.
    """
    last = 0
    for number, line in enumerate(steps, start=1):
        version = int(line["policy_version"])
        if int(line["step"]) != number or not 0 <= version - last <= 1:
            raise ConfigError(
                f"line {number} of metrics.jsonl is of step {line['step']:g} and policy version {version}, "
                f"after version {last}; a run's steps are counted from 1 and move the version by 0 or 1. The "
                "folder was changed by hand or by two runs at once, and cannot be resumed"
            )
        last = version
    if newest > last + 1:
        raise ConfigError(
            f"the newest generation is of policy version {newest}, but metrics.jsonl ends with version "
            f"{last}; its lines were lost. Move the generations above version {last + 1} away to resume from "
            "there"
        )
    if newest == last + 1:
        return ResumePoint(len(steps), len(steps) + 1, newest)
    kept = sum(int(line["policy_version"]) <= newest for line in steps)
    return ResumePoint(kept, None, newest)
