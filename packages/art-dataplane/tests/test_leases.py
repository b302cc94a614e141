"""One holder at a time, until a deadline on the owner's own clock."""

import pytest

from art_dataplane import FenceGate, Lease, LeaseError, LeaseTable


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> LeaseTable:
    return LeaseTable(clock=clock)


def test_an_item_is_under_one_lease_and_a_refused_grant_takes_nothing(table):
    first = table.grant(["a", "b"], "x", 10)
    with pytest.raises(LeaseError, match=r"'b' is leased to 'x' \(fence 1\)"):
        table.grant(["c", "b"], "y", 10)
    assert table.lease_of("c") is None
    assert table.release(first) == ("a", "b")
    assert table.grant(["c", "b"], "y", 10).fence > first.fence


def test_a_lease_ends_at_its_deadline_and_is_void_from_then_on(table, clock):
    lease = table.grant(["a"], "x", 10)
    clock.now += 9.999
    assert table.check(lease) == ("a",)
    assert table.seconds_to_next_expiry() == pytest.approx(0.001)
    clock.now += 0.002
    with pytest.raises(LeaseError, match=r"expired 0.001 s ago after 10 s"):
        table.release(lease)
    assert table.expire() == ((lease, ("a",)),)
    assert table.expire() == ()
    with pytest.raises(LeaseError, match="is not in force"):
        table.release(lease)
    assert table.seconds_to_next_expiry() is None


def test_a_renewed_lease_keeps_its_fence_and_gets_time(table, clock):
    lease = table.grant(["a"], "x", 10)
    clock.now += 9
    renewed = table.renew(lease, 10)
    clock.now += 9
    assert renewed.fence == lease.fence
    assert table.check(lease) == ("a",)
    clock.now += 1
    with pytest.raises(LeaseError, match="expired"):
        table.renew(lease, 10)


def test_a_lease_works_once(table):
    lease = table.grant(["a"], "x", 10)
    table.release(lease)
    with pytest.raises(LeaseError, match="released, revoked, expired or never granted"):
        table.release(lease)


def test_a_forged_fence_is_refused(table):
    lease = table.grant(["a"], "x", 10)
    with pytest.raises(LeaseError, match="fence 99"):
        table.check(Lease(lease.lease_id, 99, "x", 10))


@pytest.mark.parametrize("duration", [0, -1, float("nan"), float("inf")])
def test_a_lease_needs_a_duration_that_ends_also_when_it_is_renewed(table, clock, duration):
    with pytest.raises(LeaseError, match="must be positive and finite"):
        table.grant(["a"], "x", duration)
    lease = table.grant(["a"], "x", 10)
    with pytest.raises(LeaseError, match="must be positive and finite"):
        table.renew(lease, duration)
    clock.now += 9
    assert table.check(lease) == ("a",)


def test_no_copy_of_a_lease_takes_time_from_another(table, clock):
    lease = table.grant(["a"], "x", 10)
    renewed = table.renew(lease, 100)
    assert table.renew(lease, 1) == renewed
    clock.now += 99
    assert table.check(renewed) == ("a",)
    clock.now += 1
    with pytest.raises(LeaseError, match=r"expired 0.000 s ago after 100 s"):
        table.check(lease)


def test_a_lease_of_somebody_else_is_refused(table):
    lease = table.grant(["a"], "x", 10)
    with pytest.raises(LeaseError, match="of 'thief' with fence 1 is not in force"):
        table.renew(Lease(lease.lease_id, lease.fence, "thief", 10), 10)


def test_a_lease_can_be_released_piece_by_piece(table):
    lease = table.grant(["a", "b", "c"], "x", 10)
    assert table.release(lease, ["c", "a"]) == ("a", "c")
    assert table.check(lease) == ("b",)
    assert table.lease_of("a") is None
    with pytest.raises(LeaseError, match="is on 1 items and not on 'a'"):
        table.release(lease, ["a", "b"])
    assert table.release(lease, ["b"]) == ("b",)
    with pytest.raises(LeaseError, match="not in force"):
        table.check(lease)


def test_the_dead_lose_their_leases_and_nobody_else_does(table):
    class Process:
        def __init__(self, alive):
            self.alive = alive

        def is_alive(self):
            return self.alive

    processes = [Process(True), Process(False), Process(None)]  # the last one cannot be seen from here
    leases = [table.grant([f"{n}"], f"h{n}", 10, process=process) for n, process in enumerate(processes)]
    by_name = table.grant(["n"], "h0", 10)
    assert table.revoke_dead() == ((leases[1], ("1",)),)
    assert table.revoke_holder("h0") == ((leases[0], ("0",)), (by_name, ("n",)))
    assert table.check(leases[2]) == ("2",)
    assert table.watches_processes
    table.release(leases[2])
    assert not table.watches_processes


def test_revoking_frees_the_items(table):
    lease = table.grant(["a"], "x", 10)
    assert table.revoke(lease.lease_id) == ("a",)
    assert table.revoke(lease.lease_id) == ()
    with pytest.raises(LeaseError, match="not in force"):
        table.check(lease)


def test_a_gate_refuses_lower_fences_for_all_items_or_none():
    gate = FenceGate()
    gate.admit(["a", "b"], Lease("1", 5, "x", 1))
    gate.admit(["b"], Lease("2", 7, "y", 1))
    gate.admit(["a"], Lease("1", 5, "x", 1))
    with pytest.raises(LeaseError, match="'b': fence 5 of 'x' is stale, fence 7"):
        gate.admit(["c", "b"], Lease("1", 5, "x", 1))
    gate.admit(["c"], Lease("0", 1, "z", 1))  # the refused call left no trace
    gate.forget(["b"])
    gate.admit(["b"], Lease("1", 5, "x", 1))
