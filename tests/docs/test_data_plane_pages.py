"""The pages about the data plane show what happens, and their picture is the one that is drawn."""

import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("page", ["data-plane.md", "use-from-another-stack.md"])
def test_programs_print_what_the_page_shows(repository: Path, page: str) -> None:
    from run_guide import follow, timeless

    path = repository / "docs" / page
    assert timeless(follow(path)) == timeless(path.read_text(encoding="utf-8"))


def test_the_program_for_another_stack_needs_neither_torch_nor_monarch_nor_openai(
    repository: Path, tmp_path: Path
) -> None:
    from run_guide import FENCE

    page = (repository / "docs" / "use-from-another-stack.md").read_text(encoding="utf-8")
    (program,) = [each["body"] for each in FENCE.finditer(page) if each["info"] == 'python title="loop.py"']
    (tmp_path / "loop.py").write_text(program)
    for name in ("torch", "monarch", "openai", "transformers", "art", "art_topology"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this must not be imported')\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "loop.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "80 groups trained on, 0 lost" in done.stdout


def test_the_errors_that_it_sends_through_pipes_arrive_as_they_are() -> None:
    from art_dataplane import errors
    from art_dataplane.records import LostGroup

    made = [
        errors.RecordsMissingError("rollout-0", ("r1", "r2"), 5),
        errors.OwnerDiedError("rollout-0", "killed"),
        errors.RecordsLostError((LostGroup("g", ("r1",), ("rollout-0",), "killed"),), 2),
    ]
    special = {type(error) for error in made}
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
    made += [kind("what happened") for kind in kinds if kind not in special]
    assert len(made) == len(kinds) > 15
    for error in made:
        arrived = pickle.loads(pickle.dumps(error))
        assert (type(arrived), str(arrived), arrived.__dict__) == (type(error), str(error), error.__dict__)


def test_the_picture_of_leases_is_current(repository: Path) -> None:
    from lease_picture import PICTURE, picture

    assert PICTURE.read_text(encoding="utf-8") == picture(), "python tools/lease_picture.py draws it"
    assert repository in PICTURE.parents
