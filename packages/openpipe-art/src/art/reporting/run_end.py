"""The end of a run: what its folder keeps of it, the page, and what is said last.

What always holds: ``run.json`` says how the run ended before anything else is tried; nothing that goes wrong
here hides what ended the run.
"""

import asyncio
import errno
import os
import re
import shutil
import statistics
from pathlib import Path

import msgspec

from art.errors import ArtError
from art.reporting.displays import Display
from art.reporting.events import Notice, RunEnded
from art.reporting.output import DisplayError
from art.reporting.run_folder import Stop
from art.reporting.run_program import resume_line
from art.reporting.run_state import kept_steps
from art.reporting.run_writer import RunFolderError, RunWriter
from art.user_code import chain

WINDOW = 5
"""Steps that the recent reward is the mean of."""

_MESSAGE_CHARACTERS = 8000
_FULL_BYTES = 64_000_000
_ONCE_THERE_IS_ROOM = "what is finished is kept, and the run can be resumed once there is room again"
_NO_ROOM = {errno.ENOSPC: os.strerror(errno.ENOSPC), errno.EDQUOT: os.strerror(errno.EDQUOT)}
_NAMED = re.compile(rf"(?:{'|'.join(map(re.escape, _NO_ROOM.values()))}): '([^'\n]+)'")


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when a run ends.

    Args:
        error: what ended it; None when the program came to its end.
        doing: what was at work; may be empty.
        duration_s: of the run, the time before a resumption included.
    """

    error: BaseException | None
    doing: str
    duration_s: float


def end_run(writer: RunWriter, display: Display, ending: Ending) -> None:
    """Writes down how the run ended, makes its page and says the last lines.

    Raises:
        DisplayError: the program came to its end, and that cannot be shown. After an error it is not raised.
        RunFolderError: the program came to its end, and that cannot be written.
    """
    stop = stop_of(ending.error, ending.doing) if ending.error is not None else None
    try:
        try:
            writer.set_end(stop, ending.duration_s)
        except RunFolderError as error:
            if ending.error is None:
                raise
            display.show(Notice(f"how the run ended was not written: {error}"))
        if is_disk_full(ending.error):
            where = full_place(ending.error, writer.folder)
            display.show(Notice(f"there is no room left {where}; {_ONCE_THERE_IS_ROOM}"))
        display.show(_last_event(writer, display, stop, ending))
    except DisplayError:
        if ending.error is None:
            raise  # else what ended the run is told where it is caught


def stop_of(error: BaseException, doing: str) -> Stop:
    """How a run ended with ``error``, in the words in which a command tells of it."""
    if was_stopped(error):
        return Stop(reason="interrupted", doing=doing)
    from art.distributed.errors import CloseError
    from art.distributed.monarch_cli import error_texts

    message = _shortened("\n".join(text.rstrip() for text in error_texts(error)))
    if isinstance(error, CloseError) and error.__context__ is not None:
        if was_stopped(error.__context__):
            return Stop(reason="interrupted", doing=doing, message=message if error.left_behind else "")
        error = error.__context__
    return Stop(reason="failed", doing=doing, kind=type(error).__name__, message=message)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether it, or what led to it in whatever process, is that there is no room on a disk."""
    return any(
        getattr(link, "errno", None) in _NO_ROOM or any(text in str(link) for text in _NO_ROOM.values())
        for link in (chain(error) if error is not None else ())
    )


def full_place(error: BaseException | None, run_folder: Path) -> str:
    """Which file system had no room, as far as ``error`` and the disk of the run's folder tell."""
    for link in chain(error) if error is not None else ():
        if (named := _NAMED.search(str(link))) is not None:
            return f"where {named[1]} is"
    if shutil.disk_usage(run_folder).free < _FULL_BYTES:
        return f"where {run_folder} is"
    return "on a disk that the run writes to (`df -h` shows which)"


def was_stopped(error: BaseException | None) -> bool:
    """Whether it is an interrupt and no failure."""
    return isinstance(error, asyncio.CancelledError | KeyboardInterrupt)


def _shortened(text: str) -> str:
    if len(text) <= _MESSAGE_CHARACTERS:
        return text
    half = _MESSAGE_CHARACTERS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _last_event(writer: RunWriter, display: Display, stop: Stop | None, ending: Ending) -> RunEnded:
    last = [line["reward"] for line in writer.steps[-WINDOW:]]
    return RunEnded(
        reason="finished" if stop is None else stop.reason,
        doing="" if stop is None else stop.doing,
        steps=len(writer.steps),
        duration_s=ending.duration_s,
        reward=statistics.fmean(last) if last else None,
        rewards=len(last),
        run_folder=str(writer.folder),
        report=_page(writer, display),
        resume=_resume_hint(writer) if stop is not None else None,
    )


def _page(writer: RunWriter, display: Display) -> str | None:
    """Makes `report.html` once there is a step; when it cannot be made, that is told."""
    if not writer.steps:
        return None
    from art.reporting.page import write_report

    try:
        return str(write_report(writer.folder))
    except ArtError as error:
        display.show(Notice(f"the page was not written: {error}"))
        return None


def _resume_hint(writer: RunWriter) -> str | None:
    """The command that goes on with the run, also from its start, where it can be resumed."""
    command = writer.description.resume_command
    if not command or kept_steps(writer.folder, writer.description, writer.steps) is None:
        return None
    return resume_line(command, writer.folder)
