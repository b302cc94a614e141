"""The one place that knows cpu from cuda, and how megatron-core runs on a machine without CUDA.

What megatron-core 0.19.2 needs on a CPU, for one dense rank, and where each piece is:

- CPU initialization, local (not Transformer Engine) layers and no fused kernels: :data:`CPU_MODEL_OPTIONS`.
- Process groups with a size and a rank. :func:`single_rank_groups` makes them without a backend, so nothing
  listens on a port, and a collective, which one rank never needs, would raise instead of hanging.
- Its helper ``get_tensor_model_parallel_group_if_none`` drops the group it is given unless
  ``torch.distributed`` is initialized, and its layers then ask None for its size: :func:`keep_given_groups`
  puts that right in Megatron's modules.
- Norms and core attention of its own are CUDA-only; ``models`` puts this package's into the layer spec.

Nothing of torch itself is patched once Megatron is imported; while it is, :func:`without_compiler`.
"""

import contextlib
import ctypes
import functools
import logging
import os
import resource
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

CPU_MODEL_OPTIONS: dict[str, Any] = {
    "use_cpu_initialization": True,
    "perform_initialization": False,
    "transformer_impl": "local",
    "gradient_accumulation_fusion": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "apply_rope_fusion": False,
    "masked_softmax_fusion": False,
    "persist_layer_norm": False,
}
"""Options of Megatron's ``TransformerConfig`` that a CPU needs."""

CGROUP_ROOT = Path("/sys/fs/cgroup")

_GROUP_NAMES = (
    "tp", "cp", "pp", "ep", "dp", "mp", "dp_cp", "tp_cp", "tp_dp_cp", "tp_ep", "tp_ep_pp",
    "expt_tp", "expt_dp", "intra_dp_cp", "intra_expt_dp",
)  # fmt: skip


def device() -> torch.device:
    """Where this process trains. This version trains on the CPU."""
    return torch.device("cpu")


def use_threads(count: int) -> None:
    """Sets how many threads torch computes with, in the calling thread and in those started later."""
    torch.set_num_threads(count)


def reuse_freed_memory() -> None:
    """Makes the allocator keep what was freed instead of returning it to the kernel after each operation.

    glibc gives tensors of some megabytes their own mapping by default, so every operation of a step would
    fault its pages in again; that took several times as long as the arithmetic. One arena serves all threads.
    """
    trim_threshold, top_pad, mmap_threshold, arena_max = -1, -2, -3, -8  # names of <malloc.h>
    libc = ctypes.CDLL(None)
    for parameter, value in (
        (arena_max, 1),
        (mmap_threshold, 32 << 20),
        (trim_threshold, 2**31 - 1),
        (top_pad, 64 << 20),
    ):
        libc.mallopt(parameter, value)


def single_rank_groups() -> Any:
    """A ``megatron.core`` ``ProcessGroupCollection`` of groups that hold this process alone."""
    from megatron.core.process_groups_config import ProcessGroupCollection
    from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not re-exported

    group = torch.distributed.ProcessGroup(HashStore(), 0, 1)
    groups = ProcessGroupCollection()
    for name in _GROUP_NAMES:
        setattr(groups, name, group)
    groups.embd = None
    groups.pos_embd = None
    return groups


def keep_given_groups() -> None:
    """Makes Megatron's loaded modules use the process group they were given; a second call does nothing."""
    from megatron.core import utils

    name = "get_tensor_model_parallel_group_if_none"
    original = getattr(utils, name)
    if getattr(original, "keeps_given_groups", False):
        return

    @functools.wraps(original)
    def given_or_default(tp_group: Any, *args: Any, **kwargs: Any) -> Any:
        return original(tp_group, *args, **kwargs) if tp_group is None else tp_group

    given_or_default.keeps_given_groups = True  # type: ignore[attr-defined]  # a mark
    for path, module in list(sys.modules.items()):
        if path.startswith("megatron.core") and module.__dict__.get(name) is original:
            setattr(module, name, given_or_default)


@contextlib.contextmanager
def quiet_megatron() -> Iterator[None]:
    """Keeps Megatron's construction warnings, which do not concern one rank, off the user's terminal."""
    logger = logging.getLogger("megatron.core")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"megatron\..*")
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """For importing Megatron: its fused operations stay as they are written instead of being compiled.

    On a CPU none of them is used (:data:`CPU_MODEL_OPTIONS`), and marking them to be compiled loads torch's
    compiler, a quarter of the time that a rank takes to start.
    """
    compiler = torch.compile
    torch.compile = _as_written
    try:
        yield
    finally:
        torch.compile = compiler


def _as_written(model: Any = None, **_: Any) -> Any:
    """Stands for ``torch.compile``, with and without a function."""
    return model if model is not None else _as_written


def peak_resident_bytes() -> int:
    """Most memory this process has had resident so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def available_bytes() -> int:
    """Memory that this process may still take: the machine's available memory or what its cgroup leaves."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    machine = int(fields["MemAvailable"].split()[0]) * 1024
    return min([machine, *_cgroup_headroom()])


def own_cgroup() -> str | None:
    """The path of this process's version 2 cgroup, such as ``/user.slice``; None without version 2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return line[3:]
    return None


def _cgroup_headroom() -> Iterator[int]:
    """What this process's cgroup and each one above it still allow."""
    path = own_cgroup()
    folder = CGROUP_ROOT / (path or "/").lstrip("/")
    while folder.is_relative_to(CGROUP_ROOT):
        limit, used = folder / "memory.max", folder / "memory.current"
        if limit.exists() and used.exists() and limit.read_text().strip() != "max":
            yield max(0, int(limit.read_text()) - int(used.read_text()))
        folder = folder.parent


def processor_count() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0))
