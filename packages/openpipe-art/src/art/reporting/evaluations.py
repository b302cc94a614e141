"""Evaluations of a run: their names, which are there already, and how their rollouts are run."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from art.errors import ConfigError
from art.reporting.run_folder import EvaluationLine, evaluation_file, is_step_file
from art.trajectories import Rollout, TrajectoryHandle, checked_rollout
from art.trajectory_groups import expecting_trajectories

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]*")


def evaluated(
    folder: Path, lines: Sequence[EvaluationLine], name: str, version: int
) -> EvaluationLine | None:
    """The evaluation ``name`` of this policy version, if it is among ``lines``.

    Raises:
        ConfigError: the name cannot be part of a file's, or another's trajectories are in the same file.
    """
    file = evaluation_file(folder, name, version)
    if _NAME.fullmatch(name) is None or is_step_file(file):
        raise ConfigError(
            f"{name!r} cannot be an evaluation's name, which is part of a file's: letters, digits, "
            "spaces and . _ -, beginning with a letter or digit and not with 'step-'"
        )
    for line in lines:
        if (line.name, line.policy_version) == (name, version):
            return line
        if evaluation_file(folder, line.name, line.policy_version) == file:
            raise ConfigError(f"the evaluations {line.name!r} and {name!r} would both be kept in {file.name}")
    return None


async def gathered(
    rollouts: Iterable[Awaitable[Rollout]], arrived: Callable[[Rollout, int, int], None]
) -> list[Rollout]:
    """Runs all; the first failure cancels the others, waits for them and is raised.

    Args:
        rollouts: run at once.
        arrived: called with each as it is done, how many are done by then, and how many there are.
    """
    done = 0

    async def one(rollout: Awaitable[Rollout]) -> Rollout:
        nonlocal done
        item = checked_rollout(await rollout, "a rollout of this evaluation")
        if isinstance(item, TrajectoryHandle):
            item.raise_for_error()
        done += 1
        arrived(item, done, len(tasks))
        return item

    with expecting_trajectories():
        tasks = [asyncio.ensure_future(one(rollout)) for rollout in rollouts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
