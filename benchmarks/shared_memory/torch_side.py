"""torch.multiprocessing: a tensor sent through a pipe of its own, which puts it into shared memory."""

import hashlib
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.multiprocessing
from benchmarks.shared_memory.task import CONSUMERS, look

_TIMEOUT_S = 60.0


class Torch:
    """Its default way on Linux, a descriptor for each consumer; the second send shares what the first did."""

    name = "torch.multiprocessing"

    def __init__(self) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(CONSUMERS):
            mine, theirs = context.Pipe()
            process = context.Process(target=_consume, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        self._tensor: torch.Tensor | None = None

    def hand_over(self, array: np.ndarray, every_page: bool) -> Sequence[int]:
        """As :class:`benchmarks.shared_memory.task.Side` says."""
        return self._send(array, "page" if every_page else "ends")

    def release(self) -> None:
        """As :class:`benchmarks.shared_memory.task.Side` says."""
        self._tensor = None
        for pipe in self._pipes:
            pipe.send(("release", None))
        for pipe in self._pipes:
            pipe.recv()

    def digests(self, array: np.ndarray) -> Sequence[str]:
        """As :class:`benchmarks.shared_memory.task.Side` says."""
        found = self._send(array, "digest")
        self.release()
        return found

    def close(self) -> None:
        """As :class:`benchmarks.shared_memory.task.Side` says."""
        for pipe in self._pipes:
            pipe.send(("end", None))
        for process in self._processes:
            process.join(_TIMEOUT_S)

    def _send(self, array: np.ndarray, what: str) -> list:
        self._tensor = torch.from_numpy(array)
        for pipe in self._pipes:
            pipe.send((what, self._tensor))
        return [pipe.recv() for pipe in self._pipes]


def _consume(pipe: Connection) -> None:
    tensor = None
    while True:
        what, sent = pipe.recv()
        if what == "end":
            return
        if what == "release":
            tensor = sent = None
            pipe.send(tensor)
            continue
        tensor = sent
        array = tensor.numpy()
        if what == "digest":
            pipe.send(hashlib.blake2b(array).hexdigest())
        else:
            pipe.send(look(array, what == "page"))
        del array, sent
