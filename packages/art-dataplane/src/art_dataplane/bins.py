"""Puts items of given sizes into few bins of one capacity.

What always holds:

- Every item is in exactly one bin; no bin is empty or above its capacity.
- There are no more bins than best fit decreasing needs, and no more than modified first fit decreasing
  (Johnson and Garey, "A 71/60 theorem for bin packing", Journal of Complexity 1, 1985) in the form that
  NeMo-RL uses.
- The same sizes give the same bins.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

import numpy as np

SEARCHED_BINS = 4096
"""Above so many bins the third way of packing, which looks for what fills each bin best, is not tried: it
takes some 100 us for each bin."""

WORTH_A_SEARCH = 256
"""Nor is it where it could save no more than 1 bin in so many."""


def pack_bins(sizes: Sequence[int] | np.ndarray, capacity: int) -> list[list[int]]:
    """Puts all items into bins, and returns the indices of the items of each.

    Args:
        sizes: integers ``[N]``, each from 0 to ``capacity``.
        capacity: of every bin.

    Raises:
        ValueError: an item is negative or larger than a bin.
    """
    if not len(sizes):
        return []
    given = np.asarray(sizes)
    if given.dtype.kind not in "iu":
        raise ValueError(f"sizes are {given.dtype.name}; items have whole sizes")
    values = given.astype(np.int64)
    if values.min() < 0 or values.max() > capacity:
        wrong = int(values.min()) if values.min() < 0 else int(values.max())
        raise ValueError(f"an item of size {wrong} does not go into a bin of {capacity}")
    if int(values.sum()) <= capacity:
        return [list(range(len(values)))]
    order = np.argsort(-values, kind="stable")
    descending = values[order].tolist()
    bins = _best_fit_decreasing(descending, capacity)
    if len(bins) == -(-int(values.sum()) // capacity):
        return _given(bins, order)
    least = lower_bound(values, capacity)
    if len(bins) > least:
        bins = min(bins, _modified_first_fit_decreasing(descending, capacity), key=len)
    if len(bins) <= SEARCHED_BINS and (len(bins) - least) * WORTH_A_SEARCH > len(bins):
        bins = min(bins, _fullest_bins(descending, capacity), key=len)
    return _given(bins, order)


def _given(bins: list[list[int]], order: np.ndarray) -> list[list[int]]:
    """Bins of places in ``order`` as bins of what stands there."""
    given = order.tolist()
    return [[given[item] for item in content] for content in bins]


def lower_bound(sizes: Sequence[int] | np.ndarray, capacity: int) -> int:
    """No packing has fewer bins than this.

    The bound L2 of Martello and Toth (Knapsack Problems, 1990, section 8.3): items above ``capacity - a`` are
    alone among those of at least ``a``, and the items of ``a`` to half of a bin fill at most what those above
    half leave; the largest bound over all ``a`` counts.

    Args:
        sizes: integers ``[N]``, each from 0 to ``capacity``.
        capacity: of every bin.
    """
    ascending = np.sort(np.asarray(sizes, np.int64))
    if not len(ascending):
        return 0
    sums = np.concatenate(([0], np.cumsum(ascending)))
    half = int(np.searchsorted(ascending, capacity // 2, "right"))
    smallest = np.append(ascending[:half], 0)
    alone = np.searchsorted(
        ascending, capacity - smallest, "right"
    )  # from here on nothing of `smallest` fits
    first = np.searchsorted(ascending, smallest, "left")
    room = (alone - half) * capacity - (sums[alone] - sums[half])
    rest = np.maximum(sums[half] - sums[first] - room, 0)
    return int((len(ascending) - half - (-rest // capacity)).max())


def _best_fit_decreasing(sizes: list[int], capacity: int) -> list[list[int]]:
    """Each item, the largest first, goes into the fullest bin that has room for it."""
    shift = len(sizes).bit_length()
    mask, least = (1 << shift) - 1, sizes[-1]
    bins: list[list[int]] = []
    free: list[int] = []  # room and number of the bins that can still take something, ascending
    for item, size in enumerate(sizes):
        at = bisect_left(free, size << shift)
        if at < len(free):
            found = free.pop(at)
            room, number = (found >> shift) - size, found & mask
            bins[number].append(item)
        else:
            room, number = capacity - size, len(bins)
            bins.append([item])
        if room >= least:
            insort(free, room << shift | number)
    return bins


class _Ascending:
    """Items that are left, by size; of equal ones the first given comes last."""

    def __init__(self, items: Sequence[int], sizes: list[int]) -> None:
        self.items = list(items)[::-1]
        self.sizes = [sizes[item] for item in self.items]

    def take(self, at: int) -> int:
        del self.sizes[at]
        return self.items.pop(at)

    def fitting(self, room: int) -> int:
        """Where the largest stands that fits into ``room``; -1 when none does."""
        return bisect_right(self.sizes, room) - 1


def _modified_first_fit_decreasing(sizes: list[int], capacity: int) -> list[list[int]]:
    """Large items are paired with medium or small ones before the rest fills up.

    Large is above a half of a bin, medium above a third, small above a sixth. One bin for each large item;
    going forward each takes the largest medium item that fits; going backward each without one takes the
    smallest small item and the largest that fits beside it; going forward each takes what fits, the largest
    first. What is left goes into bins of its own, the largest first, each into the emptiest.
    """
    large = bisect_left(sizes, True, key=lambda size: 2 * size <= capacity)
    medium = bisect_left(sizes, True, key=lambda size: 3 * size <= capacity)
    small = bisect_left(sizes, True, key=lambda size: 6 * size <= capacity)
    bins = [[item] for item in range(large)]
    rooms = [capacity - size for size in sizes[:large]]
    mediums = _Ascending(range(large, medium), sizes)
    smalls = _Ascending(range(medium, small), sizes)
    tinies = _Ascending(range(small, len(sizes)), sizes)
    without: list[int] = []
    for number, content in enumerate(bins):
        at = mediums.fitting(rooms[number])
        if at < 0:
            without.append(number)
        else:
            rooms[number] -= mediums.sizes[at]
            content.append(mediums.take(at))
    for number in reversed(without):
        if len(smalls.sizes) < 2:
            break
        if smalls.sizes[0] + smalls.sizes[1] <= rooms[number]:
            for _ in range(2):
                at = smalls.fitting(rooms[number]) if len(bins[number]) > 1 else 0
                rooms[number] -= smalls.sizes[at]
                bins[number].append(smalls.take(at))
    left = _Ascending(sorted(mediums.items + smalls.items + tinies.items), sizes)
    for number, content in enumerate(bins):
        while (at := left.fitting(rooms[number])) >= 0:
            rooms[number] -= left.sizes[at]
            content.append(left.take(at))
    return bins + _emptiest_first(left.items[::-1], sizes, capacity)


def _emptiest_first(items: list[int], sizes: list[int], capacity: int) -> list[list[int]]:
    bins: list[list[int]] = []
    shift = len(sizes).bit_length()
    mask = (1 << shift) - 1
    filled: list[int] = []  # content and number of each bin, ascending
    for item in items:
        if filled and (filled[0] >> shift) + sizes[item] <= capacity:
            found = filled.pop(0)
            content, number = found >> shift, found & mask
            bins[number].append(item)
        else:
            content, number = 0, len(bins)
            bins.append([item])
        insort(filled, content + sizes[item] << shift | number)
    return bins


def _fullest_bins(sizes: list[int], capacity: int) -> list[list[int]]:
    """Fills one bin after the other: always the largest item that fits, and at the end the best pair.

    A form of minimum bin slack (Gupta and Ho, 1999). The search is among different sizes, not among items.
    """
    left: dict[int, list[int]] = {}
    for item in range(len(sizes) - 1, -1, -1):
        left.setdefault(sizes[item], []).append(item)
    different = list(left)  # ascending, as are the next two
    values = np.array(different, np.int64)
    several = np.array([len(items) > 1 for items in left.values()])
    bins: list[list[int]] = []
    while different:
        content: list[int] = []
        room = capacity
        while (at := bisect_right(different, room) - 1) >= 0:
            if content and room - different[at] <= different[at]:
                at = _best_filler(values[: at + 1], several[: at + 1], room)
            size = different[at]
            content.append(left[size].pop())
            room -= size
            if len(left[size]) == 1:
                several[at] = False
            elif not left[size]:
                del different[at]
                values, several = np.delete(values, at), np.delete(several, at)
        bins.append(content)
    return bins


def _best_filler(fitting: np.ndarray, several: np.ndarray, room: int) -> int:
    """Which of the sizes ``fitting`` (ascending) leaves the least room, alone or with a smaller or equal one.

    ``several`` says of which sizes there are two items.
    """
    if fitting[-1] == room:
        return len(fitting) - 1
    below = np.arange(len(fitting)) + several
    second = np.minimum(np.searchsorted(fitting, room - fitting, "right"), below) - 1
    slack = room - fitting - np.where(second >= 0, fitting[second], 0)
    return len(fitting) - 1 - int(slack[::-1].argmin())
