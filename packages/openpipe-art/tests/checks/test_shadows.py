"""A file that would be imported in place of something that ART needs is named before anything starts."""

import subprocess
import sys

import pytest

from art.checks import State
from art.checks.shadows import shadows_check


@pytest.mark.parametrize("name", ["random.py", "json.py", "queue.py", "types.py"])
def test_a_file_with_the_name_of_a_standard_module_is_refused(tmp_path, name):
    (tmp_path / name).write_text("")
    check = shadows_check([tmp_path])
    assert check.state is State.FAILURE
    assert check.found == (
        f"{tmp_path / name} would be imported in place of Python's own module {name.removesuffix('.py')}"
    )
    assert f"rename {name}" in check.remedy


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("numpy.py", "numpy"),
        ("msgspec.py", "msgspec"),
        ("art.py", "openpipe-art"),
        ("pydantic.py", "pydantic"),
    ],
)
def test_a_file_with_the_name_of_a_package_that_art_needs_is_refused(tmp_path, name, owner):
    (tmp_path / name).write_text("")
    check = shadows_check([tmp_path])
    assert check.state is State.FAILURE
    assert f"{tmp_path / name} would be imported in place of the module" in check.found
    assert check.found.endswith(f"of {owner}")


def test_a_folder_that_is_a_package_counts(tmp_path):
    (tmp_path / "json").mkdir()
    assert shadows_check([tmp_path]).state is State.OK  # no package: Python's own comes first
    (tmp_path / "json" / "__init__.py").write_text("")
    assert shadows_check([tmp_path]).state is State.FAILURE


@pytest.mark.parametrize(
    "name", ["train.py", "task.py", "sys.py", "os.py", "pytest.py", "json.txt", "json", "my-json.py"]
)
def test_other_names_are_the_users_own(tmp_path, name):
    """``sys`` and ``os`` are in the interpreter, and found before any folder is looked into."""
    (tmp_path / name).write_text("")
    assert shadows_check([tmp_path]).state is State.OK


def test_the_rule_about_built_in_modules_is_pythons(tmp_path):
    for name in ("sys", "time", "os", "io", "random", "queue"):
        (tmp_path / f"{name}.py").write_text("shadow = True")
    code = (
        "import sys, time, os, io, random, queue; print([m.__name__ for m in "
        "(sys, time, os, io, random, queue) if hasattr(m, 'shadow')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "['random', 'queue']\n"
    for name in ("random", "queue"):
        (tmp_path / f"{name}.py").unlink()
    assert shadows_check([tmp_path]).state is State.OK


def test_where_workers_look_is_looked_at_by_default(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "there"), *sys.path])
    assert shadows_check().state is State.OK
    (tmp_path / "there" / "random.py").write_text("")
    assert str(tmp_path / "there" / "random.py") in shadows_check().found
    (tmp_path / "here" / "json.py").write_text("")
    assert str(tmp_path / "here" / "json.py") in shadows_check().found


def test_links_that_lead_nowhere_do_not_matter(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nothing").symlink_to("nowhere")
    (tmp_path / "json").symlink_to(tmp_path / "nowhere")
    assert shadows_check([tmp_path]).state is State.OK
    assert shadows_check([tmp_path / "loop"]).state is State.OK
    assert shadows_check([tmp_path / "none"]).state is State.OK
