"""The command as a process: its exit codes whatever happens to its surroundings, and what it loads."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "art_topology.command"]


def process(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, env=env
    )


def test_without_the_extra_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['typer'] = None; from art_topology.command import main; main(['check', 'x'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "art-topology: the command needs typer: pip install 'art-topology[cli]'\n"


@pytest.mark.parametrize(
    "arguments", [["check", "cluster.toml"], ["--help"], ["schema"], ["groups", "cluster.toml", "--json"]]
)
def test_output_that_cannot_be_written_is_one_line(cluster_file: Path, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "art-topology: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    "arguments", [["check", "cluster.toml"], ["--help"], ["schema"], ["groups", "cluster.toml", "--json"]]
)
def test_a_closed_pipe_ends_it_quietly(cluster_file: Path, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    finally:
        os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""


def test_closed_standard_output_is_told(cluster_file: Path) -> None:
    script = f"{sys.executable} -m art_topology.command check cluster.toml >&-"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == "art-topology: standard output is closed, so there is nowhere to write to\n"


def test_an_interrupt_is_130(folder: Path) -> None:
    os.mkfifo("slow.toml")
    command = [*COMMAND, "check", "--format", "toml", "slow.toml"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running,
        # Opening for writing waits until the command has opened it for reading.
        open("slow.toml", "wb"),
    ):
        # An interrupt just before a read begins is seen when the read ends: a user presses Ctrl-C again.
        for _ in range(60):
            running.send_signal(signal.SIGINT)
            try:
                out, err = running.communicate(timeout=1)
                break
            except subprocess.TimeoutExpired:
                continue
    assert running.returncode == 130
    assert "Traceback" not in out + err


def test_an_encoding_without_a_letter_is_no_failure(cluster_file: Path) -> None:
    text = cluster_file.read_text()
    cluster_file.write_text(text.replace('base_model = "Qwen/Qwen3-8B"', 'base_model = "модель"'))
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for arguments in (["check", "cluster.toml"], ["render", "cluster.toml"], ["--help"]):
        assert process(*arguments, env=environment).returncode == 0, arguments


PROBE = """
import sys
from art_topology.command import run
code = run(["check", "cluster.toml"])
heavy = ("rich.", "art_topology.planner", "art_topology.cost", "art_topology.models", "art_topology.render",
         "yaml", "asyncio")
print(sorted(name for name in sys.modules if name.startswith(heavy)), file=sys.stderr)
sys.exit(code)
"""


def test_check_loads_only_what_it_needs(cluster_file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert done.stderr == "[]\n"


def test_completion_of_bash(cluster_file: Path) -> None:
    def completed(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        done = process(env=os.environ | words | {"_ART_TOPOLOGY_COMPLETE": "complete_bash"})
        return done.stdout.split()

    assert completed("art-topology gro") == ["groups"]
    assert set(completed("art-topology ")) >= {
        "check",
        "plan",
        "explain",
        "groups",
        "render",
        "schema",
        "diff",
        "init",
    }
    assert completed("art-topology check cl") == ["cluster.toml"]
    assert completed("art-topology groups cluster.toml --family expert") == ["expert-dp"]
    assert {"H20", "H200", "H200-SXM"} <= set(completed("art-topology plan --gpu H20"))
    assert completed("art-topology plan --network RoCE-4") == ["RoCE-400"]
    assert completed("art-topology check nowhere/x") == []


def test_bash_takes_the_completion(folder: Path) -> None:
    """The script that --show-completion prints, in a bash, with the command under its own name."""
    (folder / "art-topology").write_text(f'#!/bin/sh\nexec {sys.executable} -m art_topology.command "$@"\n')
    (folder / "art-topology").chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    script = """
eval "$(art-topology --show-completion; true)"
COMP_WORDS=(art-topology exp); COMP_CWORD=1
_art_topology_completion art-topology
echo "${COMPREPLY[@]}"
"""
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert done.stdout.strip() == "explain", done.stderr


def test_version_and_help() -> None:
    assert process("--version").stdout == "art-topology 0.1.0\n"
    for command in ("init", "check", "plan", "explain", "groups", "render", "diff", "schema"):
        done = process(command, "--help", env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"})
        assert done.returncode == 0
        assert f"art-topology {command}" in done.stdout
        assert "--json" in done.stdout
        assert "Examples" in done.stdout
        assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    "arguments", [[], ["bogus"], ["check", "--bogus"], ["explain", "x", "--rank", "one"]]
)
def test_wrong_use_is_two_lines(arguments: list[str]) -> None:
    done = process(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 2
    assert "--help" in done.stderr
