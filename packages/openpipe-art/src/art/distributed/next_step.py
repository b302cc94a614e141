"""What to do when a part of a run has failed, by what of the run is on disk."""

from pathlib import Path

from art.reporting.generations import newest_version

_GO_ON = "The run can go on from its last step on disk: start it again with resume"
_AGAIN = "No step of the run was on disk yet: start it again, with resume if one has come there since"


def next_step(folder: Path) -> str:
    """What to do when a part of the run in ``folder`` has failed: a sentence without its full stop."""
    return _GO_ON if newest_version(folder) else _AGAIN
