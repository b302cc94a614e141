"""What a step is given is packed once or waits to be given again; lost groups are named, and no others."""

from typing import Any

import pytest

from art.distributed.errors import GroupsLost, RuntimeFailure
from art.distributed.step_groups import StepGroups
from art.errors import ConfigError
from art_dataplane import LostGroup, QueueLimits, RecordsLostError, Selection, TrajectoryRef

LIMITS = QueueLimits(groups=4, records=8, byte_count=1 << 10)


def group(name: str, *owners: str) -> list[TrajectoryRef]:
    return [
        TrajectoryRef(f"{name}-{index}", name, owner, 10, 5, 1.0, 0, 0, True)
        for index, owner in enumerate(owners or ("w0",))
    ]


class Steps:
    """Step groups whose owners end when a test says so."""

    def __init__(self) -> None:
        self.ends: dict[str, str] = {}
        self.groups = StepGroups(LIMITS, self.ends.get)

    async def take(self, *groups: list[TrajectoryRef], lease_s: float = 60.0) -> Selection:
        await self.groups.withdraw_others(groups, 1.0)
        return await self.groups.take(groups, holder="packer", process=None, lease_s=lease_s, deadline_s=1.0)

    def counts(self) -> tuple[int, int, int, int]:
        """Waiting, leased, consumed and lost groups."""
        stats = self.groups.stats()
        return (
            stats.waiting_groups + stats.lost_waiting_groups,
            stats.leased_groups,
            stats.consumed_groups,
            stats.lost_groups,
        )


@pytest.fixture
def steps() -> Steps:
    return Steps()


async def test_what_was_packed_is_gone(steps: Steps) -> None:
    selection = await steps.take(group("a"), group("b"))
    assert selection.group_ids == ("a", "b")
    steps.groups.consume(selection)
    assert steps.counts() == (0, 0, 2, 0)


async def test_what_could_not_be_packed_waits_and_is_given_again(steps: Steps) -> None:
    given = group("a"), group("b")
    steps.groups.give_back(await steps.take(*given))
    assert steps.counts() == (2, 0, 0, 0), "not consumed: nothing was trained"
    again = await steps.take(*given, group("c"))
    assert again.group_ids == ("a", "b", "c")
    steps.groups.consume(again)
    assert steps.counts() == (0, 0, 3, 0)


async def test_what_is_not_given_again_is_withdrawn_and_never_trained(steps: Steps) -> None:
    steps.groups.give_back(await steps.take(group("a"), group("b")))
    removed = await steps.groups.withdraw_others([group("b")], 1.0)
    assert [ref.group_id for ref in removed] == ["a"]
    assert (await steps.take(group("b"), group("c"))).group_ids == ("b", "c")


async def test_a_group_with_other_records_is_another_one(steps: Steps) -> None:
    steps.groups.give_back(await steps.take(group("a", "w0")))
    other = [TrajectoryRef("new", "a", "w0", 10, 5, 1.0, 0, 0, True)]
    selection = await steps.take(other)
    assert [ref.record_id for ref in selection.refs] == ["new"]


async def test_a_holder_that_dies_gives_back_what_it_had(steps: Steps) -> None:
    given = group("a"), group("b")
    taken = await steps.take(*given)
    steps.groups.holder_died("packer")
    assert steps.counts() == (2, 0, 0, 0)
    with pytest.raises(RuntimeFailure, match="thrown away"):
        steps.groups.consume(taken)
    steps.groups.give_back(taken)  # nothing any more
    assert (await steps.take(*given)).lease.fence > taken.lease.fence


async def test_a_batch_whose_lease_ended_is_not_consumed(steps: Steps) -> None:
    taken = await steps.take(group("a"), lease_s=1e-6)
    with pytest.raises(RuntimeFailure, match="packing 1 groups took longer than their lease"):
        steps.groups.consume(taken)
    assert steps.counts() == (1, 0, 0, 0)


async def test_an_owner_that_is_gone_loses_exactly_its_groups(steps: Steps) -> None:
    given = [group("a", "w0"), group("b", "w0", "w1"), group("c", "w1")]
    steps.ends["w1"] = "rollout worker 1 (pid 7) died: killed by SIGKILL"
    with pytest.raises(GroupsLost) as caught:
        await steps.take(*given)
    assert caught.value.group_ids == ("b", "c")
    assert [lost.record_ids for lost in caught.value.groups] == [("b-1",), ("c-0",)]
    assert "2 of 3 groups lost records" in str(caught.value)
    assert "killed by SIGKILL" in str(caught.value)
    assert "The other 1 are as good as before" in str(caught.value)
    assert steps.counts() == (1, 0, 0, 2)
    rest = await steps.take(given[0])
    assert rest.group_ids == ("a",)


async def test_losses_that_packing_finds_are_named_and_the_others_wait(steps: Steps) -> None:
    given = [group("a"), group("b")]
    selection = await steps.take(*given)
    found = RecordsLostError((LostGroup("b", ("b-0",), ("w0",), "dropped"),), 2)
    error = steps.groups.lose(selection, found)
    assert error.group_ids == ("b",)
    assert error.groups[0].reason == "dropped"
    assert steps.counts() == (1, 0, 0, 1)
    assert (await steps.take(given[0])).group_ids == ("a",)


async def test_the_end_of_an_owner_says_more_than_a_call_that_failed(steps: Steps) -> None:
    selection = await steps.take(group("a", "w1"))
    steps.ends["w1"] = "rollout worker 1 (pid 7) died: killed by SIGKILL"
    found = RecordsLostError((LostGroup("a", ("a-0",), ("w1",), "the endpoint is undeliverable"),), 1)
    assert steps.groups.lose(selection, found).groups[0].reason == steps.ends["w1"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([group("a"), group("a")], "in the queue already"),
        ([group("a"), group("big", *["w0"] * 9)], "larger than the whole queue"),
    ],
)
async def test_groups_that_cannot_be_queued_spoil_no_later_step(
    steps: Steps, given: list[Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        await steps.take(*given)
    assert (await steps.take(group("x"), group("y"))).group_ids == ("x", "y")


async def test_a_group_given_twice_is_refused_also_when_it_waits(steps: Steps) -> None:
    steps.groups.give_back(await steps.take(group("a")))
    with pytest.raises(ConfigError, match="in the queue already"):
        await steps.take(group("a"), group("a"))


async def test_no_room_in_time_is_told(steps: Steps) -> None:
    taken = await steps.take(*[group(str(number)) for number in range(4)])
    with pytest.raises(RuntimeFailure, match="could not be queued"):
        await steps.groups.take([group("a")], holder="packer", process=None, lease_s=1.0, deadline_s=0.05)
    steps.groups.consume(taken)
