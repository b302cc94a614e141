"""Ray's object store: ``ray.put``, and an actor per consumer that gets the array as a view of the store."""

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import ray
from benchmarks.shared_memory.task import CONSUMERS, look

_TIMEOUT_S = 60.0


class Ray:
    """One node on the loopback interface, without dashboard.

    Its store has room for eight arrays, so that each goes into memory that another one was in before, and for
    ``new`` more, which are never let go of when :attr:`keep` is set.
    """

    name = "Ray's object store"

    def __init__(self, mib: int, new: int) -> None:
        self.keep = False
        self._kept: list[ray.ObjectRef] = []
        self._folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # its sockets need a short path
        ray.init(
            _node_ip_address="127.0.0.1",
            include_dashboard=False,
            num_cpus=os.cpu_count(),
            object_store_memory=(8 + new) * mib << 20,
            _temp_dir=self._folder,
            log_to_driver=False,
            configure_logging=False,
        )
        self._consumers = [_Consumer.remote() for _ in range(CONSUMERS)]
        self._ref: ray.ObjectRef | None = None

    def hand_over(self, array: np.ndarray, every_page: bool) -> Sequence[int]:
        """As :class:`benchmarks.shared_memory.task.Side` says."""
        self._ref = ray.put(array)
        return self._ask("take", self._ref, every_page)

    def release(self) -> None:
        """As :class:`benchmarks.shared_memory.task.Side` says."""
        self._ask("release")
        if self.keep:
            self._kept.append(self._ref)
        self._ref = None

    def digests(self, array: np.ndarray) -> Sequence[str]:
        """As :class:`benchmarks.shared_memory.task.Side` says."""
        self._ref = ray.put(array)
        found = self._ask("digest", self._ref)
        self.release()
        return found

    def close(self) -> None:
        """As :class:`benchmarks.shared_memory.task.Side` says."""
        self._kept.clear()
        ray.shutdown()
        end = time.monotonic() + 20.0
        while (left := _processes_of(self._folder)) and time.monotonic() < end:
            time.sleep(0.1)
        shutil.rmtree(self._folder)
        if left:
            raise SystemExit(f"processes of Ray are left: {left}")

    def _ask(self, method: str, *arguments: object) -> list:
        pending = [getattr(consumer, method).remote(*arguments) for consumer in self._consumers]
        return ray.get(pending, timeout=_TIMEOUT_S)


class RayNew:
    """The same store when it has no memory to use again."""

    name = "Ray's object store, new pages"

    def __init__(self, side: Ray) -> None:
        self._side = side

    def hand_over(self, array: np.ndarray, every_page: bool) -> Sequence[int]:
        """As :class:`benchmarks.shared_memory.task.Side` says."""
        self._side.keep = True
        return self._side.hand_over(array, every_page)

    def release(self) -> None:
        """As :class:`benchmarks.shared_memory.task.Side` says, but the store keeps the array."""
        self._side.release()
        self._side.keep = False

    def digests(self, array: np.ndarray) -> Sequence[str]:
        """As :class:`benchmarks.shared_memory.task.Side` says."""
        return self._side.digests(array)

    def close(self) -> None:
        """The other one closes both."""


@ray.remote(num_cpus=0)
class _Consumer:
    def __init__(self) -> None:
        self._array: np.ndarray | None = None

    def take(self, array: np.ndarray, every_page: bool) -> int:
        self._array = array
        return look(array, every_page)

    def digest(self, array: np.ndarray) -> str:
        return hashlib.blake2b(array).hexdigest()

    def release(self) -> None:
        self._array = None


def _processes_of(folder: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if folder.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it ended
            continue
    return found
