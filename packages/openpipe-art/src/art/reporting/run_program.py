"""Which program a run is of, and the command that goes on with it.

A run is of the program that its ``resume_command`` starts: a run goes on in that program alone, whatever else
has the same task's name. A program without such a command is known by the name of its task.
"""

import os
import shlex
from pathlib import Path

from art.errors import ConfigError
from art.reporting.run_folder import RunDescription
from art.typed_commands import typed

_PROGRAM = "--program"
_ARGUMENTS = "--"


def program_of(command: str) -> str:
    """What a command starts: of ``art-monarch local --program TRAIN -- ...`` it is TRAIN, of another command
    all that stands before the program's arguments (``--``)."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote that is not closed
        return command
    if _ARGUMENTS in words:
        words = words[: words.index(_ARGUMENTS)]
    if _PROGRAM in words[:-1]:
        return words[words.index(_PROGRAM) + 1]
    return shlex.join(words)


def resume_line(command: str, folder: Path) -> str:
    """What is to be typed to go on with the run in ``folder``."""
    return typed(f"{command} {shlex.quote(str(folder.resolve()))}")


def check_program(folder: Path, description: RunDescription, name: str, command: str) -> None:
    """Compares the program that a run is to go on in with the one that made it.

    Args:
        folder: the run's.
        description: what it is.
        name: of the task of the program of now.
        command: that goes on with a run of it; empty without one.

    Raises:
        ConfigError: it is another; names the command that goes on with the run.
    """
    then = description.resume_command
    if not then or not command:
        if description.name != name:
            raise ConfigError(
                f"the run in {folder} is of {description.name!r}, not of {name!r}; resume it with its own "
                "program"
            )
        return
    if not _same(program_of(command), program_of(then)):
        raise ConfigError(
            f"the run in {folder} was made by another program; go on with it by: {resume_line(then, folder)}"
        )


def _same(now: str, then: str) -> bool:
    if now == then:
        return True
    new, _, new_function = now.rpartition(":")
    old, _, old_function = then.rpartition(":")
    if new_function != old_function or not new.endswith(".py") or not old.endswith(".py"):
        return False
    if not os.path.exists(old):  # it was moved, or the run was
        return os.path.basename(new) == os.path.basename(old)
    return os.path.realpath(new) == os.path.realpath(old)
