"""How bytes get from the host that holds them to another one: the protocol that every transport implements.

An owner *offers* a committed segment and gets a location that travels in a reference. On each other host one
process *receives* it into a segment of its own, once for all ranks of the host, which then map that segment.
The location says which transport it is; nothing ever changes from one to another on the way.
"""

import math
from collections.abc import Collection
from typing import Literal, Protocol

from art_dataplane.bounds import are_counts
from art_dataplane.errors import TransportError
from art_dataplane.locations import Location, NixlLocation, ShmLocation, StreamLocation
from art_dataplane.shm import ShmSegmentStore

RemoteLocation = StreamLocation | NixlLocation
"""Bytes on another host."""


class Transport(Protocol):
    """One way to move bytes between hosts, for both ends. Every wait has a deadline; ``close`` ends all."""

    @property
    def name(self) -> str:
        """The tag of its locations: ``stream`` or ``nixl``."""
        ...

    async def offer(self, source: ShmLocation, *, duration_s: float, reads: int = 1) -> RemoteLocation:
        """Makes the bytes of a committed segment readable from other hosts.

        The segment must not be dropped before the offer is over: withdrawn, read ``reads`` times, or
        ``duration_s`` seconds old.

        Args:
            source: a segment of this host.
            duration_s: seconds that it may be read from now on.
            reads: how many hosts may read it, each once.

        Raises:
            ShmError: the segment is gone.
            TransportError: it cannot be offered.
        """
        ...

    async def withdraw(self, location: RemoteLocation) -> bool:
        """Ends an offer; a read that has begun fails at its reader.

        Args:
            location: what was offered.

        Returns:
            False when it was over already.
        """
        ...

    async def receive(
        self, location: RemoteLocation, segments: ShmSegmentStore, deadline_s: float
    ) -> ShmLocation:
        """Reads the bytes into a new segment of ``segments``, which the caller drops.

        Raises:
            TransportError: the peer is not the one that made the location, the bytes are not those that were
                offered, or the connection broke; nothing was kept.
            DeadlineError: not within ``deadline_s`` seconds; nothing was kept.
            ShmFullError: no room for the bytes; nothing was read.
        """
        ...

    async def close(self, deadline_s: float) -> None:
        """Withdraws every offer, ends every read and releases sockets, threads and registrations.

        Args:
            deadline_s: seconds for an orderly end; what is left then is ended at once.
        """
        ...


def check_offer(source: Location, duration_s: float, reads: int) -> None:
    """Checks what :meth:`Transport.offer` was given.

    Raises:
        TransportError: it is no segment of this host, or a number makes no sense.
    """
    if not isinstance(source, ShmLocation) or source.byte_count < 1:
        raise TransportError(f"{source} cannot be offered: it is no segment of this host; commit one first")
    if not 0 < duration_s < math.inf or not are_counts(reads):
        raise TransportError(
            f"an offer for {duration_s} s and {reads} reads; give a positive finite time and at least one "
            "read"
        )


TransportChoice = Literal["auto", "shm", "stream", "nixl"]
"""How a user says which transport to take: by name, or ``auto`` for the rule of :func:`choose_transport`."""


def choose_transport(choice: TransportChoice, *, same_host: bool, available: Collection[str]) -> str:
    """The transport to offer bytes by; the location of the reference then says which one it was.

    The rule of ``auto``: shared memory on one host; between hosts NIXL where it is available, else the
    stream.

    Args:
        choice: a name, or ``auto``.
        same_host: whether owner and user are on one host.
        available: names of the transports that both ends have.

    Raises:
        TransportError: the one that was named is not possible, or the rule finds none.
    """
    between_hosts = [name for name in ("nixl", "stream") if name in available]
    listed = ", ".join(between_hosts) or "none"
    if choice == "auto":
        if same_host:
            return "shm"
        if not between_hosts:
            raise TransportError(
                "no transport between hosts is available; make a StreamTransport at both ends"
            )
        return between_hosts[0]
    if choice == "shm":
        if not same_host:
            raise TransportError(
                f"shared memory does not reach another host; take auto or one that is available: {listed}"
            )
        return choice
    if choice not in ("stream", "nixl"):
        raise TransportError(f"there is no transport {choice!r}; auto, shm, stream or nixl")
    if choice not in between_hosts:
        raise TransportError(f"transport {choice} is not available at both ends; available: {listed}")
    return choice
