"""The ways of packing that ART is compared with.

- **NeMo-RL**: its package on the registry is a placeholder. :func:`modified_first_fit_decreasing` follows the
  published procedure (Johnson and Garey 1985) as NeMo-RL's source describes it, phase by phase and with its
  data structures (plain lists, ``bisect``), so that it costs what theirs costs.
- **TRL**: ``trl.pack_dataset(strategy="bfd")`` of the installed package.
- **AReaL**: ``_greedy_build_tries`` of the installed package, the step that merges prefixes; what follows it
  there (dense masks) is not timed. Its file is loaded alone, since the package imports its whole runtime.
"""

import importlib.util
import sys
import types
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from typing import Any

import numpy as np

Item = tuple[int, int]


def modified_first_fit_decreasing(lengths: list[int], capacity: int) -> list[list[int]]:
    """NeMo-RL's procedure: indices of the sequences in each bin."""
    classes: tuple[list[Item], ...] = ([], [], [], [])
    for index, size in enumerate(lengths):
        if size > capacity / 2:
            classes[0].append((index, size))
        elif size > capacity / 3:
            classes[1].append((index, size))
        elif size > capacity / 6:
            classes[2].append((index, size))
        else:
            classes[3].append((index, size))
    large, medium, small, tiny = classes
    large.sort(key=_size, reverse=True)
    medium.sort(key=_size, reverse=True)
    small.sort(key=_size)
    tiny.sort(key=_size)
    bins = [[item] for item in large]
    for content in bins:
        room = capacity - sum(map(_size, content))
        at = next((at for at, item in enumerate(medium) if item[1] <= room), None)
        if at is not None:
            content.append(medium.pop(at))
    for content in reversed(bins):
        if any(capacity / 3 < size <= capacity / 2 for _, size in content) or len(small) < 2:
            continue
        room = capacity - sum(map(_size, content))
        if small[0][1] + small[1][1] > room:
            continue
        first = small.pop(0)
        room -= first[1]
        second = next(at for at in range(len(small) - 1, -1, -1) if small[at][1] <= room)
        content += [first, small.pop(second)]
    left = sorted(medium + small + tiny, key=_size, reverse=True)
    for content in bins:
        while left:
            room = capacity - sum(map(_size, content))
            if room < left[-1][1]:
                break
            content.append(left.pop(next(at for at, item in enumerate(left) if item[1] <= room)))
    return [[index for index, _ in content] for content in bins + _emptiest_first(left, capacity)]


def _size(item: Item) -> int:
    return item[1]


def _emptiest_first(items: list[Item], capacity: int) -> list[list[Item]]:
    bins: list[list[Item]] = []
    filled: list[int] = []
    for item in items:
        if filled and item[1] <= capacity - filled[0]:
            content, size = bins.pop(0), filled.pop(0)
        else:
            content, size = [], 0
        content.append(item)
        size += item[1]
        at = bisect(filled, size)
        bins.insert(at, content)
        filled.insert(at, size)
    return bins


def trl_packing() -> tuple[Callable[..., Any], str]:
    """TRL's ``pack_dataset`` and its version."""
    import datasets
    from trl.data_utils import pack_dataset

    datasets.disable_progress_bars()
    return pack_dataset, distribution("trl").version


def arrow_dataset(columns: dict[str, list[np.ndarray]]) -> Any:
    """A dataset in memory of columns of lists, without a detour over Python's numbers."""
    import pyarrow
    from datasets import Dataset

    arrays = {}
    for name, parts in columns.items():
        offsets = np.concatenate(([0], np.cumsum([len(part) for part in parts]))).astype(np.int32)
        arrays[name] = pyarrow.ListArray.from_arrays(offsets, pyarrow.array(np.concatenate(parts)))
    return Dataset(pyarrow.table(arrays))


def areal_tries() -> tuple[Callable[[dict[str, Any], int], tuple[list[Any], list[int]]], str]:
    """AReaL's function that builds tries, and the version of the package."""
    package = distribution("areal")
    path = package.locate_file("areal/models/tree_attn/tree.py")
    with _hidden_modules("areal"):
        spec = importlib.util.spec_from_file_location("areal_tree", str(path))
        if spec is None or spec.loader is None:
            raise RuntimeError(f"areal {package.version} has no {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules["areal_tree"] = module
        spec.loader.exec_module(module)
    return module._greedy_build_tries, package.version


@contextmanager
def _hidden_modules(name: str) -> Iterator[None]:
    """Gives every module of package ``name`` as an empty one whose names are functions that do nothing.

    The decorators among them (AReaL's tracing, which is off by default) return what they decorate.
    """

    class Empty(types.ModuleType):
        __path__: list[str] = []  # noqa: RUF012 - what makes a module a package

        def __getattr__(self, attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            return (lambda *_: lambda decorated: decorated) if attribute.startswith("trace_") else _Nothing()

    class Finder:
        @staticmethod
        def find_spec(full: str, *_: Any) -> Any:
            if full != name and not full.startswith(f"{name}."):
                return None
            return importlib.util.spec_from_loader(full, Loader())

    class Loader:
        @staticmethod
        def create_module(spec: Any) -> types.ModuleType:
            return Empty(spec.name)

        @staticmethod
        def exec_module(module: types.ModuleType) -> None:
            """Nothing is in it."""

    finder: Any = Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
            del sys.modules[loaded]


class _Nothing:
    """Stands for what the loaded file imports and the timed function does not use."""

    def __call__(self, *_: Any, **__: Any) -> "_Nothing":
        return self

    def __getattr__(self, attribute: str) -> "_Nothing":
        return self


def padded(sequences: list[np.ndarray]) -> dict[str, Any]:
    """Sequences as AReaL is given them: a padded tensor of ids and one of what is there."""
    import torch

    ids = np.zeros((len(sequences), max(map(len, sequences))), np.int64)
    mask = np.zeros(ids.shape, bool)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = True
    return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
