"""Thousands of random interleavings on a lease table and a fence gate, against two dictionaries."""

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from art_dataplane import FenceGate, Lease, LeaseError, LeaseTable

ONE_LEASE = "an item is under one lease"
ALL_OR_NONE = "a refused call changes nothing"
STALE = "a stale fence never wins"
IN_FORCE = "a lease in force works until its deadline"
ENDED = "a lease that ended never works again"
RELEASED = "what is released is free"
FENCES = "fences grow"

ITEMS = ("a", "b", "c", "d")
HOLDERS = ("p", "q")


class LeaseMachine(RuleBasedStateMachine):
    tools: Any
    table_class = LeaseTable
    gate_class = FenceGate
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.table = self.table_class(clock=lambda: self.now)
        self.gate = self.gate_class()
        self.fence = 0
        self.held: dict[str, dict[str, Any]] = {}
        self.shown: dict[str, int] = {}

    def hold(self, law: str, condition: bool, detail: object = "") -> None:
        self.tools.hold(law, condition, detail)

    def alive(self, lease: Lease) -> dict[str, Any] | None:
        held = self.held.get(lease.lease_id)
        return held if held and held["deadline"] > self.now else None

    def call(self, held: Any, call: Any) -> Any:
        """``call`` works when the lease lives, and is refused when it does not."""
        try:
            result = call()
        except LeaseError as error:
            self.hold(IN_FORCE, held is None, error)
            return None
        self.hold(ENDED, held is not None, result)
        return result

    @rule(
        target=leases,
        items=st.lists(st.sampled_from(ITEMS), min_size=1, max_size=2),
        holder=st.sampled_from(HOLDERS),
        duration_s=st.sampled_from([4.0, 1.0, 9.0, 4.0, 1.0, 9.0, 0.0, -1.0, float("inf"), float("nan")]),
    )
    def grant(self, items, holder, duration_s):
        process = self.tools.FakeProcess()
        taken = {item for held in self.held.values() for item in held["items"]}
        is_lawful = 0 < duration_s < float("inf") and taken.isdisjoint(items)
        try:
            lease = self.table.grant(items, holder, duration_s, process=process)
        except LeaseError as error:
            self.hold(RELEASED, not is_lawful, error)
            return multiple()
        self.hold(ONE_LEASE, taken.isdisjoint(items), items)
        self.hold(IN_FORCE, is_lawful, duration_s)
        self.hold(FENCES, lease.fence > self.fence, lease)
        self.fence = lease.fence
        self.held[lease.lease_id] = {
            "items": list(dict.fromkeys(items)),
            "deadline": self.now + duration_s,
            "holder": holder,
            "process": process,
        }
        return lease

    @rule(lease=leases, forged=st.sampled_from([None, None, "fence", "holder"]))
    def check(self, lease, forged):
        held = self.alive(lease)
        if forged == "fence":
            lease, held = msgspec.structs.replace(lease, fence=lease.fence + 1), None
        elif forged == "holder":
            lease, held = msgspec.structs.replace(lease, holder="thief"), None
        items = self.call(held, lambda: self.table.check(lease))
        self.hold(IN_FORCE, held is None or list(items) == held["items"], items)

    @rule(target=leases, lease=leases, duration_s=st.sampled_from([4.0, 1.0, 9.0, 0.0, float("nan")]))
    def renew(self, lease, duration_s):
        held = self.alive(lease) if duration_s > 0 else None
        renewed = self.call(held, lambda: self.table.renew(lease, duration_s))
        if held is None:
            return multiple()
        held["deadline"] = max(held["deadline"], self.now + duration_s)
        self.hold(FENCES, renewed.fence == lease.fence, renewed)
        return renewed

    @rule(lease=leases, part=st.sampled_from([None, 1, 2]), foreign=st.booleans())
    def release(self, lease, part, foreign):
        held = self.alive(lease)
        chosen = None if part is None or held is None else held["items"][:part]
        if foreign and chosen is not None:
            other = next((item for item in ITEMS if item not in held["items"]), "elsewhere")
            with pytest.raises(LeaseError, match="and not on"):
                self.table.release(lease, [*chosen, other])
            return
        released = self.call(held, lambda: self.table.release(lease, chosen))
        if held is None:
            return
        chosen = held["items"] if chosen is None else chosen
        self.hold(RELEASED, list(released) == list(chosen), released)
        held["items"] = [item for item in held["items"] if item not in chosen]
        if not held["items"]:
            del self.held[lease.lease_id]

    def ended(self, ended: Any, expected: list[str]) -> None:
        found = {lease.lease_id: list(items) for lease, items in ended}
        self.hold(IN_FORCE, found.keys() <= set(expected), found)
        self.hold(RELEASED, found.keys() >= set(expected), (found, expected))
        for lease_id in expected:
            self.hold(RELEASED, found[lease_id] == self.held.pop(lease_id)["items"], found)

    @rule()
    def expire(self):
        late = [name for name, held in self.held.items() if held["deadline"] <= self.now]
        self.ended(self.table.expire(), late)

    @rule(holder=st.sampled_from(HOLDERS))
    def the_death_of_a_holder_is_reported(self, holder):
        theirs = [name for name, held in self.held.items() if held["holder"] == holder]
        self.ended(self.table.revoke_holder(holder), theirs)

    @rule(place=st.integers(0, 3))
    def a_process_dies(self, place):
        names = list(self.held)[place : place + 1]
        for name in names:
            self.held[name]["process"].alive = False
        self.ended(self.table.revoke_dead(), names)

    @rule(lease=leases)
    def revoke(self, lease):
        held = self.held.pop(lease.lease_id, None)
        items = self.table.revoke(lease.lease_id)
        self.hold(RELEASED, list(items) == (held["items"] if held else []), items)

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(lease=leases, items=st.lists(st.sampled_from(ITEMS), min_size=2, max_size=3))
    def show(self, lease, items):
        """The gate sees leases, not deadlines: the highest fence of an item wins."""
        is_stale = any(self.shown.get(item, 0) > lease.fence for item in items)
        try:
            self.gate.admit(items, lease)
        except LeaseError as error:
            self.hold(ALL_OR_NONE, is_stale, error)
            for item in items:  # each is still open to the highest that was admitted
                self.admitted(item, Lease("probe", self.shown.get(item, 0), "p", 1.0))
            return
        self.hold(STALE, not is_stale, (lease, items))
        self.shown.update(dict.fromkeys(items, lease.fence))

    def admitted(self, item: str, lease: Lease) -> None:
        try:
            self.gate.admit([item], lease)
        except LeaseError as error:
            raise self.tools.BrokenLawError(ALL_OR_NONE, error) from error

    @invariant()
    def every_item_is_where_it_should_be(self):
        self.hold(RELEASED, len(self.table) == len(self.held), self.table.leases())
        for lease, items in self.table.leases():
            self.hold(RELEASED, list(items) == self.held[lease.lease_id]["items"], items)
        for item in ITEMS:
            found = self.table.lease_of(item)
            owner = [name for name, held in self.held.items() if item in held["items"]]
            self.hold(ONE_LEASE, len(owner) <= 1, owner)
            self.hold(RELEASED, ([found.lease_id] if found else []) == owner, (item, found, owner))
        next_s = self.table.seconds_to_next_expiry()
        first = min((held["deadline"] for held in self.held.values()), default=None)
        self.hold(IN_FORCE, next_s == (None if first is None else max(0.0, first - self.now)), next_s)


@pytest.fixture(scope="module")
def machine(tools):
    return type("Machine", (LeaseMachine,), {"tools": tools})


def test_no_interleaving_breaks_a_law(machine, tools):
    tools.run(machine, examples=300)


class GrantsTwice(LeaseTable):
    def lease_of(self, item):
        return None

    def _end(self, lease_id):
        items = self._grants.pop(lease_id).items
        for item in items:
            self._holding.pop(item, None)
        return items


class GrantsForEver(LeaseTable):
    def grant(self, items, holder, duration_s, *, process=None):
        return super().grant(items, holder, duration_s if duration_s > 0 else 1.0, process=process)


class IgnoresFenceAndHolder(LeaseTable):
    def check(self, lease):
        grant = self._grants.get(lease.lease_id)
        return super().check(grant.lease if grant else lease)


class IgnoresDeadlines(LeaseTable):
    def check(self, lease):
        if lease.lease_id in self._grants:
            return self._grants[lease.lease_id].items
        return super().check(lease)


class RenewsForNothing(LeaseTable):
    def renew(self, lease, duration_s):
        return super().renew(lease, duration_s if duration_s > 0 else 1.0)


class RenewShortens(LeaseTable):
    def renew(self, lease, duration_s):
        self.check(lease)
        grant = self._grants[lease.lease_id]
        self._grants[lease.lease_id] = msgspec.structs.replace(grant, deadline=self._clock() + duration_s)
        return grant.lease


class EndsAtLeastOne(LeaseTable):
    def expire(self):
        return super().expire() or self._end_all(list(self._grants.values())[:1])


class KeepsItems(LeaseTable):
    def release(self, lease, items=None):
        released = super().release(lease, items)
        if items is not None and lease.lease_id in self._grants:
            self._holding.update(dict.fromkeys(released, lease.lease_id))
        return released


class ForgetsTheSecondOfTheDead(LeaseTable):
    def revoke_holder(self, holder):
        return super().revoke_holder(holder)[:1]


class RefusesHalf(FenceGate):
    def admit(self, items, lease):
        for item in items:
            super().admit([item], lease)


class LetsAnyFenceIn(FenceGate):
    def admit(self, items, lease):
        pass


class ReusesFences(LeaseTable):
    def grant(self, items, holder, duration_s, *, process=None):
        self._next_fence = len(self._grants) + 1
        return super().grant(items, holder, duration_s, process=process)


FAULTS = {
    "a leased item is granted": ({"table_class": GrantsTwice}, {ONE_LEASE, RELEASED}),
    "a lease without a duration is granted": ({"table_class": GrantsForEver}, {IN_FORCE}),
    "a forged fence or holder works": ({"table_class": IgnoresFenceAndHolder}, {ENDED}),
    "a deadline does not end a lease": ({"table_class": IgnoresDeadlines}, {ENDED}),
    "renewing for nothing works": ({"table_class": RenewsForNothing}, {ENDED}),
    "renewing takes time away": ({"table_class": RenewShortens}, {IN_FORCE, ENDED}),
    "expiry ends what is in force": ({"table_class": EndsAtLeastOne}, {IN_FORCE}),
    "a released item stays held": ({"table_class": KeepsItems}, {RELEASED}),
    "a lease of a dead holder is forgotten": ({"table_class": ForgetsTheSecondOfTheDead}, {RELEASED}),
    "fences are used again": ({"table_class": ReusesFences}, {FENCES}),
    "a refused lease leaves its fence behind": ({"gate_class": RefusesHalf}, {ALL_OR_NONE}),
    "any fence is admitted": ({"gate_class": LetsAnyFenceIn}, {STALE}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_breaks_its_law(machine, with_fault, tools, fault):
    parts, laws = FAULTS[fault]
    assert tools.law_broken_by(with_fault(machine, **parts)) in laws
