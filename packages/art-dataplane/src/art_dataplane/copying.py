"""Copies between memory that is at hand, as fast as the machine's memory allows."""

from collections.abc import Iterable

import numpy as np


def copy_arrays(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
    """Copies each source to its destination ``(destination, source)``, of equal dtype and shape."""
    for destination, source in pairs:
        np.copyto(destination, source, casting="no")
