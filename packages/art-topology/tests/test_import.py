"""Importing the package is cheap and has no effect."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROBE = """
import json, os, sys, threading, time
before = set(sys.modules), dict(os.environ), os.getcwd()
start = time.process_time()
import art_topology
elapsed = time.process_time() - start
print(json.dumps({
    "elapsed_s": elapsed,
    "modules": sorted({name.partition(".")[0] for name in set(sys.modules) - before[0]}),
    "untouched": (dict(os.environ), os.getcwd()) == before[1:],
    "threads": threading.active_count(),
}))
"""


def probe(bytecode: Path) -> dict[str, Any]:
    """Imports the package in a fresh interpreter, with bytecode cached in a folder of the test."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def test_it_takes_less_than_50_ms(tmp_path: Path) -> None:
    probe(tmp_path)
    # The least of several, in processor time: what it costs, not how busy the machine is.
    assert min(probe(tmp_path)["elapsed_s"] for _ in range(5)) < 0.050


def test_it_needs_only_msgspec_and_the_standard_library(tmp_path: Path) -> None:
    foreign = set(probe(tmp_path)["modules"]) - sys.stdlib_module_names
    assert foreign <= {"art_topology", "msgspec", "typing_extensions"}


def test_it_has_no_effect(tmp_path: Path) -> None:
    found = probe(tmp_path)
    assert found["untouched"]
    assert found["threads"] == 1


def test_the_public_list_is_complete_and_sorted_out() -> None:
    import art_topology

    assert len(set(art_topology.__all__)) == len(art_topology.__all__)
    for name in art_topology.__all__:
        assert getattr(art_topology, name) is not None
