"""What every side is asked: an array of 64-bit words in private memory, to be had by two other processes."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

CONSUMERS = 2
_WORDS_PER_PAGE = 512


def make_array(mib: int, seed: int) -> np.ndarray:
    """int64 ``[mib * 131072]`` of random words."""
    return np.random.default_rng(seed).integers(0, 1 << 40, mib << 17, np.int64)


def stamp(array: np.ndarray, turn: int) -> None:
    """Makes the array another one than in the turn before, in every page that is looked at."""
    array[::_WORDS_PER_PAGE] += turn
    array[-1] += turn


def look(array: np.ndarray, every_page: bool) -> int:
    """What a consumer does with the array that it has: the first and the last word, or one of every page."""
    if every_page:
        return int(array[::_WORDS_PER_PAGE].sum())
    return int(array[0]) ^ int(array[-1])


class Side(Protocol):
    """One way to hand an array over. Its two consumers are processes that wait for the next array."""

    name: str

    def hand_over(self, array: np.ndarray, every_page: bool) -> Sequence[int]:
        """Timed: from the array in hand until both consumers looked at theirs; what each of them saw."""
        ...

    def release(self) -> None:
        """Both consumers let go of the array, and the memory may be used for the next."""
        ...

    def digests(self, array: np.ndarray) -> Sequence[str]:
        """Not timed: hands ``array`` over, and lets each consumer digest all of its bytes."""
        ...

    def close(self) -> None:
        """Ends the consumers."""
        ...
