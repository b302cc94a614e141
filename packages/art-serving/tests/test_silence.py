"""How long a process may not answer before that counts."""

import os
import signal
import subprocess
import time

import pytest

from art_serving.silence import Unanswered, is_halted


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_silence_counts_from_the_first_look_and_an_answer_ends_it(clock):
    looks = Unanswered(30.0)

    def look(took_s):
        began = clock[0]
        clock[0] += took_s
        return looks.asked_at(began)

    assert [look(5.0) for _ in range(6)] == [None] * 6
    assert look(5.0) == 35.0
    looks.end()
    assert look(5.0) is None


def test_one_look_that_took_long_is_no_silence_since_the_asking_process_may_have_stood_still(clock):
    looks = Unanswered(30.0)
    clock[0] += 100.0
    assert looks.asked_at(1000.0) is None
    clock[0] += 1.0
    assert looks.asked_at(1100.0) == 101.0


def test_a_stopped_process_is_told_from_one_that_runs():
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert not is_halted(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        until = time.monotonic() + 5
        while not is_halted(process.pid):
            assert time.monotonic() < until
    finally:
        process.kill()
        process.wait()
    assert not is_halted(process.pid)
