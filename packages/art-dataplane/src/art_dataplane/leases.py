"""The right to use items until a deadline.

A fence grows with every grant of a table, so with every grant of an item; whoever comes with a lower one than
the owner has seen is refused. Two sides, two classes: :class:`LeaseTable` is the side that grants (queue,
batches, reservations), :class:`FenceGate` the side that is shown leases granted elsewhere (record owners).

A lease is *in force* from its grant until it is *released* by its holder, *expires* at its deadline, or is
*revoked* by its owner, for one of three reasons: the item is gone, the holder was reported dead, or the
holder's process is seen to be dead. What always holds: an item is under at most one lease; a lease that
ended never works again; a deadline only ever moves away; deadlines are measured on the granting process's
own clock.
"""

import enum
import math
import secrets
import time
from collections.abc import Callable, Iterable

import msgspec

from art_dataplane.errors import LeaseError
from art_dataplane.processes import ProcessIdentity

__all__ = ["FenceGate", "Lease", "LeaseError", "LeaseTable", "Outcome"]


class Outcome(enum.Enum):
    """What a released item becomes.

    ``CONSUMED`` is gone for good, ``DISCARDED`` may be taken again or dropped.
    """

    CONSUMED = "consumed"
    DISCARDED = "discarded"


class Lease(msgspec.Struct, frozen=True):
    """The right to use items until a deadline. Frozen data, made by a grant; the table that granted it
    decides.

    Args:
        lease_id: unique.
        fence: grows with every grant; who comes with a lower one than was seen for an item is refused.
        holder: who it was granted to.
        duration_s: seconds it is good for, measured on the granting process's monotonic clock.
    """

    lease_id: str
    fence: int
    holder: str
    duration_s: float


type Ended = tuple[tuple[Lease, tuple[str, ...]], ...]
"""Leases that ended, with their items, oldest grant first."""


class _Grant(msgspec.Struct, frozen=True):
    lease: Lease
    items: tuple[str, ...]
    deadline: float
    process: ProcessIdentity | None


class LeaseTable:
    """Grants, checks and ends leases on items named by strings. Not thread-safe; its owner serialises calls.

    Args:
        clock: seconds, monotonic.
        first_fence: the fence of the first grant; an owner that starts again after a loss of its state passes
            one above all it may have granted before.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, first_fence: int = 1) -> None:
        self._clock = clock
        self._next_fence = first_fence
        self._grants: dict[str, _Grant] = {}
        self._holding: dict[str, str] = {}

    def __len__(self) -> int:
        """The number of leases that neither ended nor were found expired."""
        return len(self._grants)

    def grant(
        self,
        items: Iterable[str],
        holder: str,
        duration_s: float,
        *,
        process: ProcessIdentity | None = None,
    ) -> Lease:
        """Puts all ``items`` under one new lease.

        Args:
            items: names; equal ones count once.
            holder: who it is for, as messages name it and :meth:`revoke_holder` is told.
            duration_s: seconds from now, finite.
            process: the holder's, for :meth:`revoke_dead`; None when it cannot be seen from here.

        Raises:
            LeaseError: an item is under another lease, or ``duration_s`` is not positive and finite.
        """
        names = tuple(dict.fromkeys(items))
        _check_duration(duration_s, holder)
        for name in names:
            held = self.lease_of(name)
            if held is not None:
                raise LeaseError(
                    f"{name!r} is leased to {held.holder!r} (fence {held.fence}); release it or let it expire"
                )
        lease = Lease(secrets.token_hex(8), self._next_fence, holder, duration_s)
        self._next_fence += 1
        self._grants[lease.lease_id] = _Grant(lease, names, self._clock() + duration_s, process)
        self._holding.update(dict.fromkeys(names, lease.lease_id))
        return lease

    def check(self, lease: Lease) -> tuple[str, ...]:
        """Returns the items of ``lease``.

        Raises:
            LeaseError: it expired, ended, or this table never granted it.
        """
        grant = self._grants.get(lease.lease_id)
        if grant is None or (grant.lease.fence, grant.lease.holder) != (lease.fence, lease.holder):
            raise LeaseError(
                f"lease {lease.lease_id} of {lease.holder!r} with fence {lease.fence} is not in force: it "
                f"was released, revoked, expired or never granted here (next fence {self._next_fence}); "
                "select again"
            )
        late_s = self._clock() - grant.deadline
        if late_s >= 0:
            raise LeaseError(
                f"lease {lease.lease_id} of {lease.holder!r} with fence {lease.fence} expired {late_s:.3f} "
                f"s ago after {grant.lease.duration_s} s; select again with a longer lease"
            )
        return grant.items

    def renew(self, lease: Lease, duration_s: float) -> Lease:
        """Moves the deadline of ``lease`` to ``duration_s`` seconds from now; the fence stays.

        A deadline never moves nearer, so that no copy of the lease can take time from another: when the one
        in force is later, it stays.

        Returns:
            The lease as it is in force.

        Raises:
            LeaseError: it is not in force, or ``duration_s`` is not positive and finite.
        """
        _check_duration(duration_s, lease.holder)
        self.check(lease)
        grant = self._grants[lease.lease_id]
        deadline = self._clock() + duration_s
        if deadline > grant.deadline:
            renewed = msgspec.structs.replace(grant.lease, duration_s=duration_s)
            grant = msgspec.structs.replace(grant, lease=renewed, deadline=deadline)
            self._grants[lease.lease_id] = grant
        return grant.lease

    def release(self, lease: Lease, items: Iterable[str] | None = None) -> tuple[str, ...]:
        """Ends ``lease``, on all its items or on some, and returns these in the order of the grant.

        Args:
            lease: in force.
            items: which; None for all. On the others it stays in force.

        Raises:
            LeaseError: it is not in force, or not on one of ``items``.
        """
        held = self.check(lease)
        if items is None:
            return self._end(lease.lease_id)
        chosen = frozenset(items)
        foreign = chosen.difference(held)
        if foreign:
            raise LeaseError(
                f"lease {lease.lease_id} of {lease.holder!r} with fence {lease.fence} is on {len(held)} "
                f"items and not on {min(foreign)!r}"
            )
        kept = tuple(name for name in held if name not in chosen)
        if not kept:
            return self._end(lease.lease_id)
        self._grants[lease.lease_id] = msgspec.structs.replace(self._grants[lease.lease_id], items=kept)
        for name in chosen:
            del self._holding[name]
        return tuple(name for name in held if name in chosen)

    def revoke(self, lease_id: str) -> tuple[str, ...]:
        """Ends a lease whatever its deadline; returns its items, none when it is not in force."""
        return self._end(lease_id) if lease_id in self._grants else ()

    def revoke_holder(self, holder: str) -> Ended:
        """Ends every lease of ``holder``, who is known to be dead, and returns them."""
        return self._end_all(grant for grant in self._grants.values() if grant.lease.holder == holder)

    def revoke_dead(self) -> Ended:
        """Ends every lease whose holder's process is seen to be dead, and returns them.

        One in another PID namespace cannot be seen; its leases end at their deadline.
        """
        dead = {process for process in self._processes() if process.is_alive() is False}
        return self._end_all(grant for grant in self._grants.values() if grant.process in dead)

    def expire(self) -> Ended:
        """Ends every lease past its deadline and returns them."""
        now = self._clock()
        return self._end_all(grant for grant in self._grants.values() if grant.deadline <= now)

    @property
    def watches_processes(self) -> bool:
        """Whether :meth:`revoke_dead` has a process to look at."""
        return bool(self._processes())

    def lease_of(self, item: str) -> Lease | None:
        """The lease that ``item`` is under, also one past its deadline that was not ended yet."""
        lease_id = self._holding.get(item)
        return None if lease_id is None else self._grants[lease_id].lease

    def leases(self) -> Ended:
        """All leases in the table with their items, oldest grant first."""
        return tuple((grant.lease, grant.items) for grant in self._grants.values())

    def seconds_to_next_expiry(self) -> float | None:
        """Seconds until :meth:`expire` has something to end (0 when it already has); None without leases."""
        if not self._grants:
            return None
        return max(0.0, min(grant.deadline for grant in self._grants.values()) - self._clock())

    def _processes(self) -> set[ProcessIdentity]:
        return {grant.process for grant in self._grants.values() if grant.process is not None}

    def _end_all(self, grants: Iterable[_Grant]) -> Ended:
        return tuple((grant.lease, self._end(grant.lease.lease_id)) for grant in tuple(grants))

    def _end(self, lease_id: str) -> tuple[str, ...]:
        items = self._grants.pop(lease_id).items
        for item in items:
            del self._holding[item]
        return items


def _check_duration(duration_s: float, holder: str) -> None:
    if not (duration_s > 0 and math.isfinite(duration_s)):
        raise LeaseError(
            f"a lease of {duration_s} s for {holder!r}: the duration must be positive and finite"
        )


class FenceGate:
    """Remembers the highest fence shown for each item and refuses lower ones."""

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}

    def admit(self, items: Iterable[str], lease: Lease) -> None:
        """Accepts ``lease`` for all ``items`` or for none.

        Raises:
            LeaseError: a higher fence was seen for one of them.
        """
        names = tuple(items)
        for name in names:
            seen = self._highest.get(name, lease.fence)
            if lease.fence < seen:
                raise LeaseError(
                    f"{name!r}: fence {lease.fence} of {lease.holder!r} is stale, fence {seen} was granted "
                    "since; discard what was done under the old lease"
                )
        self._highest.update(dict.fromkeys(names, lease.fence))

    def forget(self, items: Iterable[str]) -> None:
        """Drops what is remembered about ``items`` that are gone."""
        for name in items:
            self._highest.pop(name, None)
