"""Tracebacks in which the user's own lines stand out."""

import sysconfig
import traceback
from pathlib import Path

_ART = Path(__file__).resolve().parents[1]
_PROGRAMS = _ART / "demo"  # programs over the public interface, as users write them
_LIBRARIES = tuple(
    {
        Path(path).resolve()
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(name))
    }
)


def user_traceback(error: BaseException) -> str:
    """The traceback of ``error`` and its causes, without frames that its reader did not write.

    Left out are ART's frames, and of each run of library frames all but the last, which says what refused. Of
    an exception that passed no line of the user's all frames are shown.
    """
    formatted = traceback.TracebackException.from_exception(error)
    left_out = sum(_shorten(link) for link in _chain(formatted))
    text = "".join(formatted.format())
    if not left_out:
        return text
    frames = "1 frame" if left_out == 1 else f"{left_out} frames"
    return f"{text.rstrip()}\n[{frames} of ART and libraries not shown]\n"


def _chain(link: traceback.TracebackException | None) -> list[traceback.TracebackException]:
    links: list[traceback.TracebackException] = []
    while link is not None:
        links.append(link)
        links += [inner for one in link.exceptions or () for inner in _chain(one)]
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return links


def _shorten(link: traceback.TracebackException) -> int:
    """Takes frames out of one exception's stack; returns how many."""
    frames = list(link.stack)
    kinds = [_kind(frame.filename) for frame in frames]
    if "user" not in kinds:
        return 0
    kept = [
        frame
        for index, (frame, kind) in enumerate(zip(frames, kinds, strict=True))
        if kind == "user" or (kind == "library" and kinds[index + 1 : index + 2] != ["library"])
    ]
    first_of_user = next(index for index, frame in enumerate(kept) if _kind(frame.filename) == "user")
    kept = kept[first_of_user:]
    link.stack = traceback.StackSummary.from_list(kept)
    return len(frames) - len(kept)


def is_users(filename: str) -> bool:
    """Whether the file is neither ART's nor an installed library's."""
    return _kind(filename) == "user"


def _kind(filename: str) -> str:
    path = Path(filename)
    if path.is_relative_to(_ART):
        return "user" if path.is_relative_to(_PROGRAMS) else "art"
    if filename.startswith("<") or any(path.is_relative_to(folder) for folder in _LIBRARIES):
        return "library"
    return "user"
