"""Commands of ART as the user types them here. Importing it loads the standard library only."""

import os

_UNDER_UV = "UV_RUN_RECURSION_DEPTH"
"""What ``uv run`` sets for the process that it starts."""

_OURS = ("art", "art-monarch")


def typed(command: str) -> str:
    """A command of ART as it is to be typed: with ``uv run`` in front where this process was started so.

    There the commands are on the path of the process and not on that of the shell that the user types into.

    Args:
        command: for example ``art demo --resume runs/first``; any that does not begin with a command of ART
            stays as it is.
    """
    if os.environ.get(_UNDER_UV) and command.partition(" ")[0] in _OURS:
        return f"uv run {command}"
    return command
