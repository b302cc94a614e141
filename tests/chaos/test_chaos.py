"""Nothing is lost, nothing is trained on twice and nothing is left, whoever is killed and whenever."""

import pytest
from chaos.facts import summary
from chaos.launch import run_session
from chaos.limits import COUNTS

CAUGHT = {
    "forgets-give-back": "was neither consumed nor reported lost",
    "ignores-stale-fence": "times",
    "blames-the-living": "who did not die",
    "loses-silently": "was neither consumed nor reported lost",
    "overfills": "of 10 groups",
    "changes-a-token": "other targets than were sampled",
    "keeps-records": "still holds",
    "leaks-segments": "was left when it was killed",
}


def test_half_a_minute_of_kills_loses_nothing_and_leaves_nothing() -> None:
    facts, wrong = run_session(seed=20261130, seconds=30)
    print(summary(facts))
    assert wrong == []
    assert facts.kills.keys() == facts.stops.keys() == COUNTS.keys()
    assert facts.queue is not None
    assert facts.queue.expired_leases > 0
    assert facts.stale_releases > 0
    assert facts.lost
    assert facts.remote_batches > 0
    assert len(facts.taken) > 20


@pytest.mark.parametrize("fault", CAUGHT)
def test_a_planted_fault_is_caught(fault: str) -> None:
    _, wrong = run_session(seed=7, seconds=3, fault=fault)
    assert any(CAUGHT[fault] in line for line in wrong), wrong


def test_what_a_session_leaves_is_found() -> None:
    _, wrong = run_session(seed=7, seconds=1, fault="leaves-things")
    found = {line.split()[0] for line in wrong}
    assert {"process", "listening", "temporary"} <= found
