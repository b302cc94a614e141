"""NIXL by itself: an agent, memory that was touched, and the calls that one read takes."""

import mmap
from typing import Any

import numpy as np

from art_dataplane.nixl_agent import NixlAgent

DEADLINE_S = 60.0


def content(byte_count: int) -> np.ndarray:
    """The bytes that are read, the same in every process."""
    return np.random.default_rng(byte_count).integers(0, 256, byte_count, dtype=np.uint8)


class RawMemory:
    """Shared pages that were touched, like those of a recycled segment."""

    def __init__(self, byte_count: int) -> None:
        self._mapping = mmap.mmap(-1, byte_count, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.bytes = np.frombuffer(self._mapping, np.uint8)
        self.bytes[:] = 0

    @property
    def address(self) -> int:
        """Of the first byte."""
        return int(self.bytes.ctypes.data)


def raw_agent(name: str, transports: list[str]) -> Any:
    """The agent of NIXL's own Python interface, made like those of the transport."""
    return NixlAgent(name, "UCX", ["lo"], transports)._agent


def raw_read(agent: Any, peer: str, memory: RawMemory, remote: int, byte_count: int) -> None:
    """Registers, describes, reads, polls and releases, and nothing else."""
    registered = agent.register_memory([(memory.address, byte_count, 0, "")], "DRAM")
    here = agent.get_xfer_descs([(memory.address, byte_count, 0)], "DRAM")
    there = agent.get_xfer_descs([(remote, byte_count, 0)], "DRAM")
    handle = agent.initialize_xfer("READ", here, there, peer)
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    if state != "DONE":
        raise SystemExit(f"the read by NIXL alone ended with {state}")
    agent.release_xfer_handle(handle)
    agent.deregister_memory(registered)
