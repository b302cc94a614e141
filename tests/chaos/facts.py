"""What happened in a chaos session, and what must be true of it."""

from collections import Counter

import msgspec

from art_dataplane import QueueStats


class Put(msgspec.Struct, frozen=True):
    """A group that the queue took: the owner of each of its records."""

    owners: dict[str, str]
    expected: tuple[str, ...]


class Taken(msgspec.Struct, frozen=True):
    """A group whose consumption took effect."""

    group_id: str
    fence: int
    record_ids: tuple[str, ...]
    consumer: str


class Lost(msgspec.Struct, frozen=True):
    """A group that was reported as lost: which records, held by whom, and when that was said."""

    group_id: str
    record_ids: tuple[str, ...]
    owners: tuple[str, ...]
    reason: str
    at_s: float


class Death(msgspec.Struct, frozen=True):
    """A process that was killed, and the segments of it that were swept."""

    name: str
    role: str
    at_s: float
    swept: int
    not_swept: tuple[str, ...]


class Facts(msgspec.Struct):
    """All that is known of a session when it has ended.

    Args:
        seed: of who was killed and when.
        seconds: until the last kill.
        put: groups that the queue took.
        taken: groups that were consumed, in order.
        lost: groups that were reported lost, in order.
        deaths: of processes that were killed.
        stops: processes that were stopped for a while, by role.
        over: where more was used than a bound allows.
        wrong: what consumers found wrong in batches, and processes that ended by themselves.
        left: what the session found that nothing accounts for, at its end.
        samples: how often the use of bounds was looked at.
        unfinished: groups whose rollouts were interrupted, so that they were never put.
        stale_releases: results that came after their lease had ended, and were thrown away.
        stale_fetches: fetches that record owners refused for their fence.
        remote_batches: consumed batches that came from another host.
        failures: what else went wrong on the way and was tried again, by kind.
        queue: the queue's own count, at the end.
    """

    seed: int
    seconds: float = 0.0
    put: dict[str, Put] = {}
    taken: list[Taken] = []
    lost: list[Lost] = []
    deaths: list[Death] = []
    stops: dict[str, int] = {}
    over: list[str] = []
    wrong: list[str] = []
    left: list[str] = []
    samples: int = 0
    unfinished: int = 0
    stale_releases: int = 0
    stale_fetches: int = 0
    remote_batches: int = 0
    failures: dict[str, int] = {}
    queue: QueueStats | None = None

    def count_failure(self, error: BaseException) -> None:
        """Counts what is tried again."""
        name = type(error).__name__
        self.failures[name] = self.failures.get(name, 0) + 1

    @property
    def kills(self) -> dict[str, int]:
        """Killed processes by role."""
        return dict(Counter(death.role for death in self.deaths))


def faults(facts: Facts) -> list[str]:
    """Whatever must not be, one line each; none when every group was consumed exactly once or is lost with
    the death that explains it, nothing is left, and no bound was exceeded."""
    times = Counter(taken.group_id for taken in facts.taken)
    lost = {loss.group_id for loss in facts.lost}
    found = [f"group {group_id} was consumed {count} times" for group_id, count in times.items() if count > 1]
    found += [f"group {group_id} was consumed and reported lost" for group_id in sorted(lost & times.keys())]
    found += [
        f"group {group_id} was neither consumed nor reported lost"
        for group_id in facts.put
        if group_id not in times and group_id not in lost
    ]
    found += [f"group {name} was never put" for name in sorted((lost | times.keys()) - facts.put.keys())]
    found += _wrong_contents(facts)
    found += _unexplained_losses(facts)
    found += [
        f"segment {name} of {death.name} was left when it was killed"
        for death in facts.deaths
        for name in death.not_swept
    ]
    return [*found, *_wrong_sums(facts), *facts.over, *facts.wrong, *facts.left]


def _wrong_contents(facts: Facts) -> list[str]:
    return [
        f"group {taken.group_id} was consumed with {taken.record_ids} instead of {put.expected}"
        for taken in facts.taken
        if (put := facts.put.get(taken.group_id)) and sorted(taken.record_ids) != sorted(put.expected)
    ]


def _unexplained_losses(facts: Facts) -> list[str]:
    died = {death.name: death.at_s for death in facts.deaths}
    found = []
    for loss in facts.lost:
        put = facts.put.get(loss.group_id)
        if put is None:
            continue
        alive = [name for name in loss.owners if died.get(name, float("inf")) > loss.at_s]
        theirs = {record_id for record_id, owner in put.owners.items() if owner in loss.owners}
        if alive or not loss.owners:
            found.append(f"group {loss.group_id} was reported lost with {alive or 'nobody'}, who did not die")
        elif set(loss.record_ids) != theirs:
            found.append(f"group {loss.group_id} lost {sorted(theirs)} and {loss.record_ids} were reported")
    return found


def _wrong_sums(facts: Facts) -> list[str]:
    if facts.queue is None:
        return ["the queue was not looked at"]
    queue = facts.queue
    found = []
    if (queue.put_groups, queue.consumed_groups + queue.lost_groups) != (len(facts.put),) * 2:
        found.append(
            f"the queue counts {queue.put_groups} groups put, {queue.consumed_groups} consumed and "
            f"{queue.lost_groups} lost; {len(facts.put)} were put"
        )
    held = (
        queue.waiting_groups,
        queue.lost_waiting_groups,
        queue.leased_groups,
        queue.records,
        queue.byte_count,
    )
    reserved = (queue.reserved_groups, queue.reserved_records, queue.reserved_bytes)
    if any(held) or any(reserved):
        found.append(f"the queue still holds {held} and has reserved {reserved}")
    return found


def summary(facts: Facts) -> str:
    """What happened, in a few lines."""
    assert facts.queue is not None
    in_flight = facts.queue.lost_groups - len(facts.lost)
    blamed = Counter(owner for loss in facts.lost for owner in loss.owners)
    killed_owners = sum(death.role == "owner" for death in facts.deaths)
    lines = [
        f"seed {facts.seed}, {facts.seconds:.0f} s of kills",
        f"groups    {len(facts.put)} put, {len(facts.taken)} consumed once, {len(facts.lost)} reported lost; "
        f"{facts.unfinished} interrupted before they were put",
        f"lost      with {len(blamed)} of {killed_owners} killed owners; {in_flight} more groups had been "
        "packed when an owner of theirs died, and were consumed",
        f"kills     {_by_role(facts.kills)}; {sum(death.swept for death in facts.deaths)} segments swept",
        f"stops     {_by_role(facts.stops)}",
        f"leases    {facts.queue.expired_leases} expired, {facts.queue.revoked_leases} revoked from the "
        f"dead, {facts.queue.discarded_groups} groups given back",
        f"refused   {facts.stale_releases} late results by the queue, {facts.stale_fetches} stale fences by "
        "owners",
        f"hosts     {facts.remote_batches} consumed batches came over a stream",
        f"bounds    looked at {facts.samples} times",
        f"retried   {_by_role(facts.failures)}",
    ]
    return "\n".join(lines)


def _by_role(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {role}" for role, count in sorted(counts.items())) or "none"
