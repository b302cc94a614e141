"""The committed version over several members, with members made of plain objects."""

import asyncio

import pytest

from art_dataplane.locations import InlineLocation
from art_dataplane.snapshot import SnapshotManifest
from art_serving import ActivationError, MemberActivation, MemberError
from art_serving.adapters import CommittedAdapter, ServingMember


def manifest(version: int) -> SnapshotManifest:
    return SnapshotManifest(version, "{}", (), 0, f"digest-{version}", InlineLocation(b""))


class Lease:
    def __init__(self, version: int) -> None:
        self.manifest = manifest(version)
        self.released = 0

    def release(self) -> None:
        self.released += 1


class Member:
    """Client and launcher in one; ``answer`` is an error to raise, or a digest to report instead of the right
    one.
    """

    def __init__(
        self, answer: Exception | str | None = None, *, reachable: bool = True, delay_s: float = 0.0
    ) -> None:
        self.answer = answer
        self.reachable = reachable
        self.delay_s = delay_s
        self.version: int | None = None
        self.quarantined: str | None = None
        self.ended = False

    async def receive_snapshot(self, manifest: SnapshotManifest, deadline_s: float) -> SnapshotManifest:
        return manifest

    async def activate(self, manifest: SnapshotManifest, deadline_s: float) -> MemberActivation:
        await asyncio.sleep(self.delay_s)
        if isinstance(self.answer, Exception):
            raise self.answer
        self.version = manifest.version
        digest = self.answer or manifest.digest
        return MemberActivation(version=manifest.version, digest=digest, wait_ms=1, pause_ms=2, read_ms=3)

    async def quarantine(self, reason: str, deadline_s: float) -> None:
        if not self.reachable:
            raise MemberError("unreachable")
        self.quarantined = reason

    async def end(self) -> None:
        self.ended = True


def serving(*members: Member) -> list[ServingMember]:
    return [ServingMember(index, member, member, member.end) for index, member in enumerate(members)]


async def test_a_version_is_committed_when_every_member_reports_it_and_its_lease_is_held():
    adapter, members = CommittedAdapter(), serving(Member(), Member())
    first, second = Lease(1), Lease(2)
    report = await adapter.activate(members, first.manifest, first, 5)
    assert (report.version, [one.member for one in report.members], report.pause_ms) == (1, [0, 1], 2)
    assert adapter.manifest == first.manifest
    assert first.released == 0
    await adapter.activate(members, second.manifest, second, 5)
    assert (first.released, second.released) == (1, 0)
    await adapter.release()
    await adapter.release()
    assert second.released == 1


async def test_when_every_member_refuses_the_old_version_stays():
    one, two = Member(), Member()
    adapter, members = CommittedAdapter(), serving(one, two)
    kept, refused = Lease(1), Lease(2)
    await adapter.activate(members, kept.manifest, kept, 5)
    one.answer = two.answer = ActivationError("does not fit")
    with pytest.raises(ActivationError, match="does not fit") as caught:
        await adapter.activate(members, refused.manifest, refused, 5)
    assert not caught.value.quarantined
    assert adapter.doubt is None
    assert adapter.manifest == kept.manifest
    assert (kept.released, refused.released) == (0, 1)


@pytest.mark.parametrize(
    "answer",
    [
        ActivationError("refused by one"),
        ActivationError("unknown", quarantined=True),
        MemberError("no answer"),
        "another digest",
    ],
)
async def test_members_that_disagree_are_quarantined_until_a_restart(answer):
    good, bad = Member(), Member(answer)
    adapter, members = CommittedAdapter(), serving(good, bad)
    kept, lost, late = Lease(1), Lease(2), Lease(3)
    bad.answer = None
    await adapter.activate(members, kept.manifest, kept, 5)
    bad.answer = answer
    with pytest.raises(ActivationError, match="quarantined; restart it") as caught:
        await adapter.activate(members, lost.manifest, lost, 5)
    assert caught.value.quarantined
    assert good.quarantined
    assert bad.quarantined
    assert adapter.manifest == kept.manifest
    assert (kept.released, lost.released) == (0, 1)
    with pytest.raises(ActivationError, match="the service is quarantined"):
        await adapter.activate(members, late.manifest, late, 5)
    assert late.released == 1
    fresh = Member()
    await adapter.restore(serving(fresh), 5)
    assert fresh.version == 1
    assert adapter.doubt is None
    await adapter.activate(serving(fresh), manifest(4), None, 5)


async def test_a_member_that_cannot_be_told_to_refuse_is_ended():
    good, silent = Member(), Member(MemberError("no answer"), reachable=False)
    with pytest.raises(ActivationError):
        await CommittedAdapter().activate(serving(good, silent), manifest(1), None, 5)
    assert (good.ended, silent.ended) == (False, True)


async def test_activations_follow_one_another():
    slow = Member(delay_s=0.05)
    adapter, members = CommittedAdapter(), serving(slow)
    leases = [Lease(version) for version in range(1, 6)]
    await asyncio.gather(*(adapter.activate(members, lease.manifest, lease, 5) for lease in leases))
    assert adapter.manifest == manifest(5)
    assert [lease.released for lease in leases] == [1, 1, 1, 1, 0]
