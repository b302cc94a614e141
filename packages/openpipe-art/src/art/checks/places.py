"""Folders that the environment names, as every process of a run must see them. Standard library only."""

import os
from pathlib import Path

_FOLDERS = ("HOME", "ART_CACHE_DIR", "ART_STATE_DIR")


def make_absolute() -> str | None:
    """Makes the folders that these variables name absolute, with ``~`` the home folder, here and in children.

    A process that runs in another folder would take a relative name for another place.

    Returns:
        What is wrong with this process's place, or None.
    """
    try:
        os.getcwd()
    except OSError:
        return "the current folder does not exist any more; change to another"
    if os.environ.get("HOME") == "":
        return _NO_HOME
    for name in _FOLDERS:
        named = os.environ.get(name)
        if not named:
            continue
        try:
            path = Path(named) if name == "HOME" else Path(named).expanduser()
        except RuntimeError as error:
            return f"{name}={named!r}: {error}; name a folder by its whole path"
        os.environ[name] = os.path.abspath(path)
    try:
        Path.home()
    except RuntimeError:
        return _NO_HOME
    return None


_NO_HOME = "the user has no home folder here; say where it is: export HOME=/some/folder"
