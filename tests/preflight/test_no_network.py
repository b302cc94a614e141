"""Without a network and with nothing in the caches, ``art demo`` ends with one message."""

import os
import subprocess
import sys
from pathlib import Path


def test_what_cannot_be_fetched_is_one_message_with_the_next_step(tmp_path: Path) -> None:
    environment = os.environ | {
        "UV_OFFLINE": "1",
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "ART_CACHE_DIR": str(tmp_path / "art"),
        "ART_STATE_DIR": str(tmp_path / "state"),
    }
    run = tmp_path / "run"
    result = subprocess.run(
        [Path(sys.executable).with_name("art"), "demo", "--run-dir", run],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("art demo: uv could not build environment")
    assert "check the network" in result.stderr
    assert "Traceback" not in result.stdout + result.stderr
