"""The right to use an item until a deadline.

A fence grows with every grant of the same item; whoever comes with a lower one than the owner has seen is refused.
"""

import enum

import msgspec


class LeaseError(Exception):
    """A lease is stale, expired, released or was never granted."""


class Outcome(enum.Enum):
    """What a released item becomes: ``CONSUMED`` is gone for good, ``DISCARDED`` may be taken again or dropped."""

    CONSUMED = "consumed"
    DISCARDED = "discarded"


class Lease(msgspec.Struct, frozen=True):
    """Granted by an owner to ``holder`` for ``duration_s`` seconds, measured on the owner's monotonic clock."""

    lease_id: str
    fence: int
    holder: str
    duration_s: float
