"""Nothing is lost, nothing is trained on twice and nothing is left, whoever is killed and whenever."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from chaos.facts import summary
from chaos.launch import run_session
from chaos.limits import COUNTS
from chaos.planted import OTHERS, QUEUES

CAUGHT = {
    "forgets-give-back": ["was neither consumed nor reported lost"],
    "ignores-stale-fence": ["was consumed 2 times"],
    "blames-the-living": ["who did not die"],
    "loses-silently": ["was neither consumed nor reported lost"],
    "overfills": ["of 10 groups"],
    "changes-a-token": ["other targets than were sampled"],
    "keeps-records": ["still holds"],
    "leaks-segments": ["was left when it was killed"],
    "leaves-things": [
        "segment art-chaos",
        "socket packer-of-yore",
        "process ",
        "listening",
        "temporary file",
    ],
}


def test_half_a_minute_of_kills_loses_nothing_and_leaves_nothing() -> None:
    facts, wrong = run_session(seed=20261130, seconds=30)
    print(summary(facts))
    assert wrong == []
    assert facts.kills.keys() == COUNTS.keys()
    assert all(facts.stops[role] for role in COUNTS)
    assert facts.queue is not None
    assert facts.queue.expired_leases > 0
    assert facts.stale_releases > 0
    assert facts.lost
    assert facts.remote_batches > 0
    assert len(facts.taken) > 20


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """What sessions with one fault each found; three at a time, since they mostly wait."""
    with ThreadPoolExecutor(3) as pool:
        sessions = {
            fault: pool.submit(run_session, seed=7, seconds=1, fault=fault) for fault in (*QUEUES, *OTHERS)
        }
        return {fault: session.result()[1] for fault, session in sessions.items()}


@pytest.mark.parametrize("fault", CAUGHT)
def test_a_planted_fault_is_caught(found: dict[str, list[str]], fault: str) -> None:
    for what in CAUGHT[fault]:
        assert any(what in line for line in found[fault]), found[fault]


def test_every_fault_that_can_be_planted_is_planted(found: dict[str, list[str]]) -> None:
    assert found.keys() == CAUGHT.keys()
