"""Installed packages are compared with what the installed metadata declares, extras included."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from art.checks import State, packages


class Site:
    """A folder of distributions that is searched before all others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, version: str, *requirements: str, python: str = ">=3.12") -> None:
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = [
            "Metadata-Version: 2.4",
            f"Name: {name}",
            f"Version: {version}",
            f"Requires-Python: {python}",
        ]
        lines += [f"Requires-Dist: {requirement}" for requirement in requirements]
        (info / "METADATA").write_text("\n".join(lines) + "\n")


@pytest.fixture
def site(tmp_path, monkeypatch) -> Site:
    monkeypatch.syspath_prepend(str(tmp_path))
    return Site(tmp_path)


def problems(extra: str = "") -> set[str]:
    return {str(problem) for problem in packages.package_problems(extra)}


def test_what_is_absent_or_of_another_version_is_named(site):
    site.add(
        "openpipe-art",
        "9.0",
        "zz-base>=1",
        "zz-pinned==0.7.0; extra == 'distributed'",
        "zz-absent>=2; extra == 'cpu'",
        "zz-pinned==0.7.0; extra == 'cpu'",
    )
    site.add("zz-base", "1.5")
    site.add("zz-pinned", "0.7.1")
    assert problems() == set()
    assert problems("distributed") == {"zz-pinned==0.7.0 is needed, 0.7.1 is installed"}
    assert problems("cpu") == {
        "zz-pinned==0.7.0 is needed, 0.7.1 is installed",
        "zz-absent>=2 is not installed",
    }


def test_a_pre_release_of_an_allowed_version_is_taken(site):
    site.add("openpipe-art", "9.0", "zz-early>=2.0.dev1")
    site.add("zz-early", "2.1rc1")
    assert problems() == set()


def test_markers_of_other_systems_do_not_count(site):
    site.add(
        "openpipe-art",
        "9.0",
        "zz-other; sys_platform == 'win32'",
        "zz-both; extra == 'cpu' and sys_platform == 'linux'",
        "zz-never; extra == 'cpu' and sys_platform == 'win32'",
    )
    assert problems() == set()
    assert problems("cpu") == {"zz-both is not installed"}


def test_requirements_of_arts_own_distributions_are_followed_and_those_of_others_are_not(site):
    site.add("openpipe-art", "9.0", "art-trainer; extra == 'cpu'", "zz-base")
    site.add("art-trainer", "9.0", "zz-core==0.19.2", "art-kernels")
    site.add("art-kernels", "9.0", "art-trainer", "zz-deep")
    site.add("zz-base", "1.0", "zz-theirs")
    assert problems("cpu") == {"zz-core==0.19.2 is not installed", "zz-deep is not installed"}


def test_a_check_names_everything_and_the_command(site):
    site.add("openpipe-art", "9.0", "zz-a; extra == 'cpu'", "zz-b; extra == 'cpu'")
    check = packages.installed_check("cpu")
    assert check.state is State.FAILURE
    assert check.found == "zz-a is not installed; zz-b is not installed"
    assert check.remedy == "pip install 'openpipe-art[cpu]==9.0'"


def test_a_clone_is_told_of_uv(site, monkeypatch):
    site.add("openpipe-art", "9.0")
    info = site.folder / "openpipe_art-9.0.dist-info"
    clone = site.folder / "a clone"
    url = (clone / "packages" / "openpipe-art").as_uri()
    (info / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))
    assert packages.install_command("cpu") == "pip install 'openpipe-art[cpu]==9.0'"  # no clone any more
    clone.mkdir()
    (clone / "uv.lock").touch()
    here = f"cd {shlex.quote(str(clone))} && "
    into = f"uv pip install --python {shlex.quote(sys.executable)} -e './packages/openpipe-art[cpu]'"
    assert packages.install_command("cpu") == here + into
    monkeypatch.setattr(sys, "prefix", str(clone / ".venv"))
    assert packages.install_command("cpu") == f"{here}uv sync"


@pytest.mark.parametrize(("name", "package"), [("MegatronBackend", "art_serving")])
def test_a_name_that_needs_an_extra_says_so_with_the_command(name, package, tmp_path):
    """As in an installation without extras: nothing can import the package."""
    (tmp_path / "program.py").write_text(
        "import sys\nimport importlib.abc\n"
        f"class Absent(importlib.abc.MetaPathFinder):\n"
        f"    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {package!r}:\n"
        f"            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)\n"
        f"sys.meta_path.insert(0, Absent())\n"
        f"import importlib.util\n"
        f"found = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *more: name != {package!r} and found(name, *more) or None\n"
        f"import art\n"
        f"try:\n"
        f"    art.{name}\n"
        f"except art.ConfigError as error:\n"
        f"    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=60
    )
    said = f"art.{name} needs the package {package}, which comes with the extra 'cpu': "
    command = packages.install_command("cpu")
    assert done.stdout == f"{said}`{command}` ({tmp_path / 'program.py'}:13)\n", done.stderr


def test_this_python_will_do():
    assert packages.python_check().state is State.OK


@pytest.mark.parametrize("version", ["3.11.9", "3.10.0", "2.7.18"])
def test_another_python_is_refused(version, monkeypatch):
    monkeypatch.setattr(packages, "python_version", lambda: version)
    check = packages.python_check()
    assert check.state is State.FAILURE
    assert version in check.found
    assert ">=3.12" in check.needed
    assert "uv venv --python 3.12" in check.remedy


def test_the_base_install_meets_its_own_metadata():
    absent = {problem.requirement for problem in packages.package_problems() if problem.installed is None}
    assert absent == set()
