"""The right to use items until a deadline.

A fence grows with every grant of a table, so with every grant of an item; whoever comes with a lower one than
the owner has seen is refused. Two sides, two classes: :class:`LeaseTable` is the side that grants (queue,
batches, snapshots), :class:`FenceGate` the side that is shown leases granted elsewhere (record owners).

What always holds: an item is under at most one lease; a lease that expired, was released or revoked never
works again; deadlines are measured on the granting process's own clock.
"""

import enum
import secrets
import time
from collections.abc import Callable, Iterable

import msgspec

from art_dataplane.errors import LeaseError

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


class _Grant(msgspec.Struct):
    lease: Lease
    items: tuple[str, ...]
    deadline: float


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

    def grant(self, items: Iterable[str], holder: str, duration_s: float) -> Lease:
        """Puts all ``items`` under one new lease.

        Args:
            items: names; equal ones count once.
            holder: who it is for, as messages name it.
            duration_s: seconds from now.

        Raises:
            LeaseError: an item is under another lease, or ``duration_s`` is not positive.
        """
        names = tuple(dict.fromkeys(items))
        if not duration_s > 0:
            raise LeaseError(f"a lease of {duration_s} s for {holder!r}: the duration must be positive")
        for name in names:
            held = self.lease_of(name)
            if held is not None:
                raise LeaseError(
                    f"{name!r} is leased to {held.holder!r} (fence {held.fence}); release it or let it expire"
                )
        lease = Lease(secrets.token_hex(8), self._next_fence, holder, duration_s)
        self._next_fence += 1
        self._grants[lease.lease_id] = _Grant(lease, names, self._clock() + duration_s)
        self._holding.update(dict.fromkeys(names, lease.lease_id))
        return lease

    def check(self, lease: Lease) -> tuple[str, ...]:
        """Returns the items of ``lease``.

        Raises:
            LeaseError: it expired, ended, or this table never granted it.
        """
        grant = self._grants.get(lease.lease_id)
        if grant is None or grant.lease.fence != lease.fence:
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

        Raises:
            LeaseError: it is not in force.
        """
        items = self.check(lease)
        renewed = msgspec.structs.replace(self._grants[lease.lease_id].lease, duration_s=duration_s)
        self._grants[lease.lease_id] = _Grant(renewed, items, self._clock() + duration_s)
        return renewed

    def release(self, lease: Lease) -> tuple[str, ...]:
        """Ends ``lease`` and returns its items.

        Raises:
            LeaseError: it is not in force.
        """
        self.check(lease)
        return self._end(lease.lease_id)

    def revoke(self, lease_id: str) -> tuple[str, ...]:
        """Ends a lease whatever its deadline; returns its items, none when it is not in force."""
        return self._end(lease_id) if lease_id in self._grants else ()

    def expire(self) -> tuple[tuple[Lease, tuple[str, ...]], ...]:
        """Ends every lease past its deadline and returns them with their items, oldest grant first."""
        now = self._clock()
        late = [grant for grant in self._grants.values() if grant.deadline <= now]
        return tuple((grant.lease, self._end(grant.lease.lease_id)) for grant in late)

    def lease_of(self, item: str) -> Lease | None:
        """The lease that ``item`` is under, also one past its deadline that was not ended yet."""
        lease_id = self._holding.get(item)
        return None if lease_id is None else self._grants[lease_id].lease

    def leases(self) -> tuple[tuple[Lease, tuple[str, ...]], ...]:
        """All leases in the table with their items, oldest grant first."""
        return tuple((grant.lease, grant.items) for grant in self._grants.values())

    def seconds_to_next_expiry(self) -> float | None:
        """Seconds until :meth:`expire` has something to end (0 when it already has); None without leases."""
        if not self._grants:
            return None
        return max(0.0, min(grant.deadline for grant in self._grants.values()) - self._clock())

    def _end(self, lease_id: str) -> tuple[str, ...]:
        items = self._grants.pop(lease_id).items
        for item in items:
            del self._holding[item]
        return items


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
