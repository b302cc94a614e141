"""What to tell of a folder that is none of a run."""

import os
from pathlib import Path

from art.reporting.run_folder import RUN

_SHOWN_RUNS = 5


def is_run(folder: Path) -> bool:
    """Whether it is the folder of a run."""
    return os.path.isfile(folder / RUN)


def no_run(folder: Path) -> str:
    """Why a folder is none of a run, what one is, and which there are."""
    text = f"{folder} is no run's folder: "
    if is_run(folder.parent) and os.path.isfile(folder):
        return f"{text}it is a file; give the folder that it is in, {folder.parent}"
    why = "it does not exist"
    if os.path.exists(folder):
        why = f"it has no {RUN}" if os.path.isdir(folder) else "it is a file"
    text += f"{why}. A run's folder is what the run named last when it ended"
    places = {Path("runs"), folder, folder.parent}
    found = sorted(
        {path.parent for place in places for path in _globbed(place, f"*/{RUN}")},
        key=lambda path: (path / RUN).stat().st_mtime,
        reverse=True,
    )
    if not found:
        return f"{text}; where none was chosen it lies below runs/ in the folder where the run was started"
    more = f" and {len(found) - _SHOWN_RUNS} older" if len(found) > _SHOWN_RUNS else ""
    return f"{text}; here are {', '.join(str(path) for path in found[:_SHOWN_RUNS])}{more}"


def _globbed(folder: Path, pattern: str) -> list[Path]:
    try:
        return [path for path in folder.glob(pattern) if os.path.isfile(path)]
    except OSError:  # a folder that may not be read has nothing to show
        return []
