"""Installed packages are compared with what the installed metadata declares, extras included."""

import json
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
    assert packages.install_command("cpu") == f"cd {clone} && uv sync"


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
