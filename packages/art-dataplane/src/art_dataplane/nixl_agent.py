"""The Python interface of NIXL behind few methods, with this package's errors; imported on first use.

One thread owns an agent: NIXL's own locks are off. NIXL's progress thread moves the bytes meanwhile.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from art_dataplane.errors import TransportError

_PROGRESS_US = 10000
"""Microseconds after which NIXL's progress thread looks for work that no event told it of."""

_environment_lock = threading.Lock()


class TransferState(Enum):
    """Of one read."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


def nixl_module_name() -> str:
    """The installed build of NIXL: ``nixl_cu12`` or ``nixl_cu13``.

    They differ in the CUDA that they were built with, which host memory does not need. With both installed
    (the package ``nixl`` brings both), it is the one whose CUDA runtime is installed from wheels,
    ``nixl_cu12`` when none is.

    Raises:
        TransportError: neither is installed.
    """
    found = [name for name in ("nixl_cu12", "nixl_cu13") if importlib.util.find_spec(name) is not None]
    if not found:
        raise TransportError(
            "NIXL is not installed: install art-dataplane[nixl], which brings nixl-cu12, or nixl-cu13 where "
            "CUDA is 13; either works for host memory"
        )
    if len(found) == 2:
        cuda13 = any(True for _ in importlib.metadata.Distribution.discover(name="nvidia-cuda-runtime"))
        return "nixl_cu13" if cuda13 else "nixl_cu12"
    return found[0]


class NixlAgent:
    """One agent with one backend, for host memory.

    Args:
        name: unique among all agents that ever meet.
        backend: NIXL's name of it.
        devices: network interfaces that UCX may use and listen on; others stay closed.
        transports: UCX's transports; empty leaves the choice to UCX.

    Raises:
        TransportError: NIXL is not installed, or has no such backend, device or transport.
    """

    def __init__(self, name: str, backend: str, devices: Sequence[str], transports: Sequence[str]) -> None:
        module = importlib.import_module(nixl_module_name())
        if "NIXL_LOG_LEVEL" not in os.environ:
            logging.getLogger("nixl").setLevel(logging.WARNING)  # it tells of each agent on stdout
        bindings = importlib.import_module(f"{module.__name__}._bindings")
        self._errors: tuple[type[Exception], ...] = tuple(
            value
            for key, value in vars(bindings).items()
            if key.startswith("nixl") and key.endswith("Error") and isinstance(value, type)
        )
        self.name = name
        self._backend = backend
        config = bindings.nixlAgentConfig()
        config.useProgThread = True
        config.useListenThread = False
        config.syncMode = bindings.NIXL_THREAD_SYNC_NONE
        config.pthrDelay = _PROGRESS_US
        what = (
            f"no NIXL agent with backend {backend}, devices {list(devices)} and transports {list(transports)}"
        )
        with self._told(what), _ucx_environment(devices, transports):
            self._agent: Any = module.nixl_agent(name, module.nixl_agent_config(backends=[]))
            # Its own agent has a delay of 0, and a thread that polls without a pause: one processor for ever.
            self._agent.agent = bindings.nixlAgent(name, config)
            self._agent.create_backend(backend, {})

    def register(self, address: int, byte_count: int) -> object:
        """Registers memory.

        Raises:
            TransportError: NIXL refused.
        """
        with self._told(f"{byte_count} bytes cannot be registered with NIXL"):
            return self._agent.register_memory([(address, byte_count, 0, "")], "DRAM", [self._backend])

    def deregister(self, registration: object) -> None:
        """Ends a registration.

        Raises:
            TransportError: NIXL refused.
        """
        with self._told("memory cannot be deregistered with NIXL"):
            self._agent.deregister_memory(registration, [self._backend])

    def metadata(self, regions: Sequence[tuple[int, int]]) -> bytes:
        """What another agent needs to reach this one and these registered regions ``(address, bytes)``."""
        with self._told("NIXL gives no metadata"):
            named = [(address, count, 0, "") for address, count in regions]
            described = self._agent.get_reg_descs(named, "DRAM")
            return bytes(self._agent.get_partial_agent_metadata(described, True, [self._backend]))

    def add_peer(self, metadata: bytes) -> str:
        """Learns of another agent, or more of a known one; returns its name.

        Raises:
            TransportError: it is not metadata, or the agent cannot be reached.
        """
        with self._told("the owner cannot be reached, or its metadata are damaged"):
            name = self._agent.add_remote_agent(metadata)
            return name.decode() if isinstance(name, bytes) else str(name)

    def remove_peer(self, name: str) -> None:
        """Forgets another agent. No read from it may be running."""
        with self._told(f"NIXL cannot forget agent {name}"):
            self._agent.remove_remote_agent(name)

    def read(self, peer: str, local: int, remote: int, byte_count: int) -> object:
        """Starts to read ``byte_count`` bytes at address ``remote`` of ``peer`` into address ``local``.

        Returns:
            A handle for :meth:`state` and :meth:`release`.

        Raises:
            TransportError: the peer did not describe that memory, or is gone; nothing runs.
        """
        with self._told(f"no read of {byte_count} bytes from agent {peer}"):
            here = self._agent.get_xfer_descs([(local, byte_count, 0)], "DRAM")
            there = self._agent.get_xfer_descs([(remote, byte_count, 0)], "DRAM")
            handle = self._agent.initialize_xfer("READ", here, there, peer, b"", [self._backend])
        try:
            self._agent.transfer(handle)
        except self._errors:
            return _Failed(handle)
        return handle

    def state(self, handle: object) -> TransferState:
        """How a read is going. Only ``DONE`` says that its memory will not be written any more."""
        if isinstance(handle, _Failed):
            return TransferState.FAILED
        try:
            state = self._agent.check_xfer_state(handle)
        except self._errors:
            return TransferState.FAILED
        return {"DONE": TransferState.DONE, "PROC": TransferState.RUNNING}.get(state, TransferState.FAILED)

    def release(self, handle: object) -> None:
        """Frees a handle. One that is not done is not stopped by it: close the agent for that."""
        if isinstance(handle, _Failed):
            handle = handle.handle
        with self._told("NIXL does not release a handle"):
            self._agent.release_xfer_handle(handle)

    def notify(self, peer: str, message: bytes) -> None:
        """Sends a message to a peer; there is no answer.

        Raises:
            TransportError: the peer is gone.
        """
        with self._told(f"agent {peer} cannot be told"):
            self._agent.send_notif(peer, message)  # with a backend, NIXL 1.5.1 raises TypeError

    def notifications(self) -> list[bytes]:
        """The messages that came since the last call, of all peers."""
        with self._told("NIXL gives no notifications"):
            arrived = self._agent.get_new_notifs([self._backend])
        return [message for messages in arrived.values() for message in messages]

    def close(self) -> None:
        """Ends the agent with its connections: afterwards nothing writes to its memory any more.

        Every handle was released before.
        """
        self._agent = None

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise TransportError(f"{what} ({error}; agent {self.name})") from error


class _Failed:
    """The handle of a read that did not start."""

    def __init__(self, handle: object) -> None:
        self.handle = handle


@contextlib.contextmanager
def _ucx_environment(devices: Sequence[str], transports: Sequence[str]) -> Iterator[None]:
    """Tells UCX its devices and transports, which it takes as lists from the environment only."""
    wanted = {"UCX_NET_DEVICES": ",".join(devices)}
    if transports:
        wanted["UCX_TLS"] = ",".join(transports)
    with _environment_lock:
        before = {key: os.environ.get(key) for key in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for key, value in before.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value
