"""Runs a chaos session in a process of its own and looks for what it left on this machine."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from art_testing.leftovers import LeftoverChecker
from chaos.facts import Facts, faults

from art_dataplane import decode_json

TESTS = Path(__file__).parents[1]
OVERHEAD_S = 120.0
FACTOR = 4.0
CLEAN_S = 5.0
POLL_S = 0.1


def run_session(seed: int, seconds: float, fault: str = "") -> tuple[Facts, list[str]]:
    """Runs one session.

    Args:
        seed: of who is killed and when.
        seconds: of kills, at least.
        fault: what to plant, a name of :mod:`chaos.planted`.

    Returns:
        What happened, and all that is wrong with it: nothing, unless there is a fault.

    Raises:
        RuntimeError: the session did not end by itself.
    """
    base = Path(tempfile.mkdtemp(prefix="chaos-"))  # short: sockets have to fit into it
    temporary, sockets = base / "tmp", base / "s"
    temporary.mkdir()
    sockets.mkdir()
    checker = LeftoverChecker(temporary)
    environment = checker.environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), environment.get("PYTHONPATH", "")])
    try:
        run_id = f"chaos-{uuid.uuid4().hex[:8]}"
        arguments = [str(seed), str(seconds), str(sockets), run_id, fault]
        done = subprocess.run(
            [sys.executable, "-m", "chaos.session", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds * FACTOR + OVERHEAD_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the session ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        facts = decode_json((base / "facts.json").read_bytes(), Facts)
        return facts, [*faults(facts), *_leftovers(checker, run_id)]
    finally:
        checker.kill_all()
        shutil.rmtree(base)


def _leftovers(checker: LeftoverChecker, run_id: str) -> list[str]:
    """What is left on this machine; segments of other runs are none of ours."""
    deadline = time.monotonic() + CLEAN_S
    while True:
        found = [line for line in checker.find() if "segment" not in line or run_id in line]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(POLL_S)
