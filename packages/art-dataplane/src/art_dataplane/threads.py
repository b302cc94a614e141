"""Threads that have an owner: each does one piece of blocking work, and all have ended when the owner has.

They are daemons, so that an owner that was never closed does not keep its process from ending.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable


class OwnedThreads:
    """The threads of one owner. Thread-safe.

    Args:
        name: what the threads' names start with.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()

    def __len__(self) -> int:
        """How many have not ended."""
        with self._lock:
            self._threads = {thread for thread in self._threads if thread.is_alive()}
            return len(self._threads)

    def start[T](self, name: str, work: Callable[[], T]) -> concurrent.futures.Future[T]:
        """Does ``work`` in a new thread.

        Args:
            name: of the work, for the thread's name.
            work: what to do.

        Returns:
            Its result or error; it cannot be cancelled.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001  # told to whoever waits for the future
                future.set_exception(error)
            else:
                future.set_result(result)

        thread = threading.Thread(target=run, name=f"{self._name}-{name}", daemon=True)
        with self._lock:
            thread.start()
            self._threads = {thread, *(other for other in self._threads if other.is_alive())}
        return future


async def result_of[T](
    future: concurrent.futures.Future[T], *, stop: Callable[[], None], undo: Callable[[T], None]
) -> T:
    """Waits for work in a thread so that cancellation leaves nothing behind.

    Args:
        future: of the work; must end soon after ``stop`` was called.
        stop: called when the caller is cancelled before the work is done.
        undo: called with the result of work that was done although the caller was cancelled.
    """
    wrapped = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(wrapped)
    except asyncio.CancelledError:
        stop()
        await settled(wrapped)
        if wrapped.exception() is None:
            undo(wrapped.result())
        raise


async def settled[T](future: asyncio.Future[T]) -> None:
    """Waits until ``future`` is done, also while the caller is being cancelled; its error is not raised."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
