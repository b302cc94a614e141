"""A program that cannot see its arguments is refused when it gets some; any other is left to itself."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from art.distributed.errors import ProgramError
from art.distributed.program_arguments import check_arguments_are_read, may_read_arguments

IGNORING = {
    "nothing": "async def main(launch):\n    pass\n",
    "other fields": "async def main(launch):\n    print(launch.host_mesh, launch.host_count)\n",
    "more parameters": "async def main(launch, steps=3):\n    print(launch.host_mesh, steps)\n",
    "hands it on": "def start(launch):\n    return launch.host_mesh\n\n\nasync def main(launch):\n"
    "    start(launch)\n",
    "hands it on by name": "def start(*, launch):\n    return launch.host_mesh\n\n\nasync def main(launch):\n"
    "    start(launch=launch)\n",
    "another's arguments": "class Plan:\n    arguments = 3\n\n\nasync def main(launch):\n"
    "    print(Plan.arguments, launch.host_mesh)\n",
}
READING = {
    "reads": "async def main(launch):\n    print(launch.arguments)\n",
    "reads in a helper": "def steps(context):\n    return len(context.arguments)\n\n\n"
    "async def main(launch):\n    print(steps(launch))\n",
    "keeps it": "async def main(launch):\n    kept = [launch]\n    print(kept[0].arguments)\n",
    "renames it": "async def main(launch):\n    here = launch\n    print(here.arguments)\n",
    "hands it to a library": "import functools\n\n\nasync def main(launch):\n"
    "    print(functools.partial(print, launch))\n",
    "in a function within": "async def main(launch):\n    def inner():\n        return launch.arguments\n"
    "    print(inner())\n",
    "by name": "async def main(launch):\n    print(getattr(launch, 'arguments'))\n",
    "all positions": "def start(*all):\n    print(all[0].arguments)\n\n\nasync def main(launch):\n"
    "    start(launch)\n",
    "calls itself": "async def main(launch):\n    await main(launch)\n",
    "all names": "async def main(launch):\n    print(locals())\n",
}


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Makes a module of a source and returns its ``main``."""

    def make(source: str):
        name = f"program_{abs(hash(source))}"
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()
        return importlib.import_module(name).main

    return make


@pytest.mark.parametrize("kind", IGNORING)
def test_a_program_that_reads_no_arguments_is_refused_some(program, kind):
    main = program(IGNORING[kind])
    assert not may_read_arguments(main)
    check_arguments_are_read(main, (), "train.py:main")
    with pytest.raises(ProgramError, match=r"train\.py:main takes no arguments.* was given --steps 0;"):
        check_arguments_are_read(main, ("--steps", "0"), "train.py:main")


@pytest.mark.parametrize("kind", READING)
def test_a_program_that_may_read_them_gets_them(program, kind):
    check_arguments_are_read(program(READING[kind]), ("--steps", "0"), "train.py:main")


def test_the_command_refuses_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(IGNORING["nothing"])
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "art.distributed.monarch_cli", "local"),
            *("--program", "plain.py:main", "--", "--nonsense"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("art-monarch: plain.py:main takes no arguments")
    assert len(done.stderr.splitlines()) == 1
