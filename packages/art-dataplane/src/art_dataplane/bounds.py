"""What is held and what is promised, against bounds.

What always holds: nothing is taken or reserved that would bring held + reserved above the limits. Limits that
are set lower than what is there take nothing away; they only let nothing in.
"""

import msgspec


def are_counts(*numbers: object) -> bool:
    """Whether each is a whole number of at least 1; True is none."""
    return all(isinstance(each, int) and not isinstance(each, bool) and each >= 1 for each in numbers)


class Amount(msgspec.Struct, frozen=True):
    """So many groups, records and bytes; also what is left of them, which may be negative.

    Args:
        groups: groups of records.
        records: records in all groups.
        byte_count: bytes of these records' MessagePack.
    """

    groups: int = 0
    records: int = 0
    byte_count: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        """The sum, number by number."""
        return Amount(
            self.groups + other.groups, self.records + other.records, self.byte_count + other.byte_count
        )

    def __sub__(self, other: "Amount") -> "Amount":
        """The difference, number by number."""
        return Amount(
            self.groups - other.groups, self.records - other.records, self.byte_count - other.byte_count
        )

    def is_within(self, bounds: "Amount") -> bool:
        """Whether no number is above that of ``bounds``."""
        return (
            self.groups <= bounds.groups
            and self.records <= bounds.records
            and self.byte_count <= bounds.byte_count
        )

    def __str__(self) -> str:
        """In words."""
        return f"{self.groups} groups, {self.records} records, {self.byte_count} bytes"


class Ledger:
    """Counts what is held and what is reserved. Not thread-safe; its owner serialises calls.

    Args:
        limits: the bounds in force.
    """

    def __init__(self, limits: Amount) -> None:
        self.limits = limits
        self.held = Amount()
        self.reserved = Amount()

    @property
    def room(self) -> Amount:
        """What is left under the limits; negative after they were lowered."""
        return self.limits - self.held - self.reserved

    def fits(self, amount: Amount) -> bool:
        """Whether ``amount`` can be taken or reserved now."""
        return amount.is_within(self.room)

    def fits_empty(self, amount: Amount) -> bool:
        """Whether ``amount`` would fit if nothing else were there."""
        return amount.is_within(self.limits)

    def take(self, amount: Amount) -> None:
        """Counts ``amount``, which fits, as held."""
        self.held += amount

    def give(self, amount: Amount) -> None:
        """Counts ``amount`` as held no more."""
        self.held -= amount

    def reserve(self, amount: Amount) -> None:
        """Counts ``amount``, which fits, as reserved."""
        self.reserved += amount

    def unreserve(self, amount: Amount) -> None:
        """Counts ``amount`` as reserved no more."""
        self.reserved -= amount
