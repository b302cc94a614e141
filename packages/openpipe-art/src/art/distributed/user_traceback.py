"""Tracebacks in which the user's own lines stand out."""

import inspect
import traceback

from art.awaiting import hand_over
from art.errors import ArtError
from art.user_code import AWAIT_HINT, await_hint, chain, is_users, kind_of, place


def user_traceback(error: BaseException) -> str:
    """The traceback of ``error`` and its causes, without frames that its reader did not write.

    Left out are ART's frames, and of each run of library frames all but the last, which says what refused. Of
    an exception that passed no line of the user's all frames are shown. Where a coroutine was used in place
    of its result, a last line asks for the ``await``.
    """
    formatted = traceback.TracebackException.from_exception(error)
    left_out = sum(_shorten(link) for link in _chain(formatted))
    text = "".join(formatted.format())
    if left_out:
        frames = "1 frame" if left_out == 1 else f"{left_out} frames"
        text = f"{text.rstrip()}\n[{frames} of ART and libraries not shown]\n"
    hint = next((hint for link in chain(error) if (hint := await_hint(link))), "")
    return f"{text.rstrip()}\n{hint}\n" if hint else text


def passed_user_code(error: BaseException) -> bool:
    """Whether the error or one of its causes passed a line of the user's."""
    return any(
        is_users(frame.f_code.co_filename)
        for link in chain(error)
        for frame, _ in traceback.walk_tb(link.__traceback__)
    )


def rollout_traceback(error: BaseException) -> str:
    """As :func:`user_traceback`; empty for an error that ART raises on purpose where no line of the user's
    ran: its text names the place, and ART's frames say nothing to who reads it."""
    return "" if isinstance(error, ArtError) and not passed_user_code(error) else user_traceback(error)


def last_user_line(error: BaseException) -> str:
    """The last line of the user's that ``error`` passed on its way from where it was raised; else empty."""
    lines = [
        place(frame.f_code.co_filename, line, frame.f_code.co_qualname)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if is_users(frame.f_code.co_filename)
    ]
    return lines[-1] if lines else ""


def close_unawaited(error: BaseException) -> None:
    """Closes the coroutines that an error is about, where its text asks for the ``await``.

    Python would warn of each once more, in lines that say less. Others, of which nothing was told, stay.
    """
    for link in chain(error):
        if not (await_hint(link) or AWAIT_HINT in str(link)):
            continue
        values = [getattr(link, "obj", None)]
        for frame, _ in traceback.walk_tb(link.__traceback__):
            values += frame.f_locals.values()
        for value in values:
            parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            for one in (value, *parts):
                if inspect.iscoroutine(one) and inspect.getcoroutinestate(one) == inspect.CORO_CREATED:
                    one.close()
                else:
                    hand_over(one)


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
    kinds = [kind_of(frame.filename) for frame in frames]
    if "user" not in kinds:
        return 0
    kept = [
        frame
        for index, (frame, kind) in enumerate(zip(frames, kinds, strict=True))
        if kind == "user" or (kind == "library" and kinds[index + 1 : index + 2] != ["library"])
    ]
    first_of_user = next(index for index, frame in enumerate(kept) if kind_of(frame.filename) == "user")
    kept = kept[first_of_user:]
    link.stack = traceback.StackSummary.from_list(kept)
    return len(frames) - len(kept)
