"""The builder, with bundles that need no registry: a project and a dependency that is built by its own
backend.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import msgspec
import psutil
import pytest
from packaging.requirements import Requirement

from art_serving import (
    EnvironmentBuildError,
    EnvironmentBundle,
    NoRoomError,
    build_environment,
    find_environment,
    vllm_bundle,
)
from art_serving.bundle import bundle_digest
from art_serving.vllm_runtime import runtime_from_variable, vllm_environment

PROJECT = """
[project]
name = "tool"
version = "1"
requires-python = ">=3.12"
dependencies = ["part"]

[tool.uv]
package = false

[tool.uv.sources]
part = { path = "../part" }
"""

PART = """
[project]
name = "part"
version = "1"

[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""

BACKEND = """
import os, pathlib, time, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    here = pathlib.Path(__file__).parent
    print("building part slowly", flush=True)
    time.sleep(float((here / "seconds").read_text()))
    if (here / "broken").exists():
        raise RuntimeError("part is broken on purpose")
    name = "part-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("part.py", (here / "part.py").read_text())
        wheel.writestr("part-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: part\\nVersion: 1\\n")
        tags = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr("part-1.dist-info/WHEEL", tags)
        wheel.writestr("part-1.dist-info/RECORD", "")
    return name
"""

LOCK = """
version = 1
revision = 3
requires-python = ">=3.12"

[[package]]
name = "part"
version = "1"
source = { directory = "../part" }

[[package]]
name = "tool"
version = "1"
source = { virtual = "." }
dependencies = [
    { name = "part" },
]

[package.metadata]
requires-dist = [{ name = "part", directory = "../part" }]
"""


def make_bundle(root: Path, seconds: float = 0.0, answer: str = "1") -> EnvironmentBundle:
    (root / "tool").mkdir(parents=True)
    (root / "part" / "tests").mkdir(parents=True)
    (root / "tool" / "pyproject.toml").write_text(PROJECT)
    (root / "tool" / "uv.lock").write_text(LOCK)
    (root / "part" / "pyproject.toml").write_text(PART)
    (root / "part" / "backend.py").write_text(BACKEND)
    (root / "part" / "seconds").write_text(str(seconds))
    (root / "part" / "part.py").write_text(f"answer = {answer}\n")
    return EnvironmentBundle("toy", root, "tool", ("tool", "part"))


def answer_of(environment) -> str:
    command = [environment.python, "-c", "import part; print(part.answer)"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def entries(cache: Path) -> list[Path]:
    return [path for path in (cache / "environments").iterdir() if path.is_dir()]


async def test_an_environment_is_built_once_and_told_line_by_line(tmp_path):
    bundle, cache = make_bundle(tmp_path / "bundle"), tmp_path / "cache"
    assert find_environment(bundle, cache) is None
    lines = []
    environment = await build_environment(bundle, cache, deadline_s=60, progress=lines.append)
    assert answer_of(environment) == "1"
    assert lines[0].phase == "prepare"
    assert any("part" in line.text for line in lines if line.phase == "install")
    assert lines[-1].phase == "done"
    assert all(line.elapsed_s >= 0 for line in lines)
    again = []
    assert await build_environment(bundle, cache, deadline_s=60, progress=again.append) == environment
    assert [line.phase for line in again] == ["reuse"]
    assert find_environment(bundle, cache) == environment
    # What was built is a copy: the sources can go.
    assert answer_of(environment) == "1"


async def test_an_edit_is_another_environment_and_the_old_one_stays(tmp_path):
    bundle, cache = make_bundle(tmp_path / "bundle"), tmp_path / "cache"
    first = await build_environment(bundle, cache, deadline_s=60)
    (tmp_path / "bundle" / "part" / "tests" / "test_part.py").write_text("")
    assert bundle_digest(bundle) == first.digest
    (tmp_path / "bundle" / "part" / "part.py").write_text("answer = 2\n")
    second = await build_environment(bundle, cache, deadline_s=60)
    assert (answer_of(first), answer_of(second)) == ("1", "2")


async def test_an_entry_without_its_marker_is_never_used(tmp_path):
    bundle, cache = make_bundle(tmp_path / "bundle"), tmp_path / "cache"
    environment = await build_environment(bundle, cache, deadline_s=60)
    (entry,) = entries(cache)
    (entry / "complete.json").unlink()
    (entry / "junk").write_text("left by a build that was killed")
    assert find_environment(bundle, cache) is None
    assert await build_environment(bundle, cache, deadline_s=60) == environment
    assert not (entry / "junk").exists()
    (entry / ".venv" / "bin" / "python").unlink()
    assert find_environment(bundle, cache) is None
    assert answer_of(await build_environment(bundle, cache, deadline_s=60)) == "1"


async def test_two_builders_build_once(tmp_path):
    bundle, cache = make_bundle(tmp_path / "bundle", seconds=1.0), tmp_path / "cache"
    lines: list[list] = [[], []]
    first, second = await asyncio.gather(
        *(build_environment(bundle, cache, deadline_s=60, progress=lines[i].append) for i in range(2))
    )
    assert first == second
    phases = [{line.phase for line in told} for told in lines]
    assert sorted("install" in found for found in phases) == [False, True]
    assert any("wait" in found for found in phases)


async def test_a_failed_build_says_what_uv_said(tmp_path):
    bundle, cache = make_bundle(tmp_path / "bundle"), tmp_path / "cache"
    (tmp_path / "bundle" / "part" / "broken").write_text("")
    with pytest.raises(EnvironmentBuildError, match="part is broken on purpose"):
        await build_environment(bundle, cache, deadline_s=60)
    assert find_environment(bundle, cache) is None
    (tmp_path / "bundle" / "tool" / "uv.lock").unlink()
    with pytest.raises(EnvironmentBuildError, match=r"has no uv\.lock"):
        await build_environment(bundle, cache, deadline_s=60)


async def test_a_deadline_ends_a_build_and_a_wait_for_one(tmp_path):
    bundle, cache = make_bundle(tmp_path / "bundle", seconds=600), tmp_path / "cache"
    children = set(psutil.Process().children(recursive=True))
    with pytest.raises(EnvironmentBuildError, match="was not ready within 2 s"):
        await build_environment(bundle, cache, deadline_s=2)
    assert set(psutil.Process().children(recursive=True)) <= children
    assert find_environment(bundle, cache) is None


async def test_cancellation_ends_uv_and_leaves_nothing_that_is_used(tmp_path):
    bundle, cache = make_bundle(tmp_path / "bundle", seconds=600), tmp_path / "cache"
    children = set(psutil.Process().children(recursive=True))
    installing = asyncio.Event()
    building = asyncio.ensure_future(
        build_environment(
            bundle, cache, deadline_s=60, progress=lambda line: line.phase == "install" and installing.set()
        )
    )
    await asyncio.wait_for(installing.wait(), 30)
    assert set(psutil.Process().children(recursive=True)) > children
    began = time.monotonic()
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert time.monotonic() - began < 6
    assert set(psutil.Process().children(recursive=True)) <= children
    assert find_environment(bundle, cache) is None


BUILDER = """
import asyncio, sys
from pathlib import Path
from art_serving import EnvironmentBundle, build_environment
bundle = EnvironmentBundle("toy", Path(sys.argv[1]), "tool", ("tool", "part"))
progress = lambda line: print(line.phase, line.text, flush=True)
asyncio.run(build_environment(bundle, Path(sys.argv[2]), deadline_s=60, progress=progress))
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
async def test_a_builder_that_is_killed_takes_uv_along_and_the_next_builds_anew(tmp_path, signum):
    bundle, cache = make_bundle(tmp_path / "bundle", seconds=4.0), tmp_path / "cache"
    builder = subprocess.Popen(  # noqa: ASYNC220 - it is what the test kills
        [sys.executable, "-c", BUILDER, str(bundle.root), str(cache)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert builder.stdout is not None
    while not (await asyncio.to_thread(builder.stdout.readline)).startswith("install"):
        assert builder.poll() is None
    async with asyncio.timeout(10):
        while len(family := psutil.Process(builder.pid).children(recursive=True)) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    os.kill(builder.pid, signum)
    builder.wait(10)
    (entry,) = entries(cache)
    assert not (entry / "complete.json").exists()
    assert find_environment(bundle, cache) is None
    # The next builder waits until nothing of the killed one can write there any more.
    environment = await build_environment(bundle, cache, deadline_s=60)
    assert not [
        process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]
    assert answer_of(environment) == "1"


def fake_runtime(root: Path, first_line: str | None = None) -> Path:
    bin_folder = root / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (root / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (bin_folder / "python").symlink_to(sys.executable)
    command = bin_folder / "art-vllm-runtime-server"
    command.write_text(first_line if first_line is not None else f"#!{bin_folder / 'python'}\n")
    command.chmod(0o755)
    return command


async def test_the_variable_names_an_environments_own_command(tmp_path, monkeypatch):
    command = fake_runtime(tmp_path / "one")
    monkeypatch.setenv("ART_VLLM_RUNTIME_BIN", str(command))
    environment = await vllm_environment(deadline_s=1)
    assert environment.path == tmp_path / "one" / ".venv"
    assert environment.command("art-vllm-runtime-server") == command
    long = tmp_path / ("x" * 120)
    python = long / ".venv" / "bin" / "python"
    runtime_from_variable(str(fake_runtime(long, f"#!/bin/sh\n'''exec' '{python}' \"$0\" \"$@\"\n' '''\n")))


def test_wrappers_are_refused(tmp_path):
    good = fake_runtime(tmp_path / "good")
    wrapper = tmp_path / "wrapper.sh"
    wrapper.write_text(f"#!/bin/sh\nexec {good}\n")
    wrapper.chmod(0o755)
    elsewhere = fake_runtime(tmp_path / "elsewhere")
    elsewhere.unlink()
    elsewhere.symlink_to(good)
    foreign = fake_runtime(tmp_path / "foreign", f"#!{good.parent / 'python'}\n")
    cases = {
        str(wrapper): "does not end as",
        str(elsewhere): "symbolic link",
        str(foreign): "do not name the environment's own interpreter",
        str(fake_runtime(tmp_path / "shell", "#!/bin/sh\n")): "do not name the environment's own interpreter",
        "art-vllm-runtime-server": "not absolute",
        str(tmp_path / "none" / ".venv" / "bin" / "art-vllm-runtime-server"): "no such executable",
    }
    for value, message in cases.items():
        with pytest.raises(EnvironmentBuildError, match=message):
            runtime_from_variable(value)


def test_this_installation_carries_the_runtime_and_what_it_needs():
    bundle = vllm_bundle()
    assert (bundle.root / bundle.project / "src" / "art_vllm_runtime" / "server.py").is_file()
    assert (bundle.root / "art-dataplane" / "src" / "art_dataplane" / "snapshot.py").is_file()


def test_the_lock_knows_the_dependencies_of_the_package_it_installs_from_source():
    bundle = vllm_bundle()
    lock = tomllib.loads((bundle.root / bundle.project / "uv.lock").read_text())
    project = tomllib.loads((bundle.root / "art-dataplane" / "pyproject.toml").read_text())["project"]
    (locked,) = [package for package in lock["package"] if package["name"] == "art-dataplane"]
    declared = {Requirement(text).name for text in project["dependencies"]}
    required = {item["name"] for item in locked["metadata"]["requires-dist"] if "marker" not in item}
    assert required == declared


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of its own that has 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


BIG_BACKEND = BACKEND.replace(
    'wheel.writestr("part.py", (here / "part.py").read_text())',
    'wheel.writestr("part.py", (here / "part.py").read_text()); wheel.writestr("big", bytes(40_000_000))',
)


async def test_a_full_disk_is_named_once_with_what_is_needed_and_nothing_is_left(
    tmp_path, small_disk, monkeypatch
):
    bundle, cache = make_bundle(tmp_path / "bundle"), small_disk / "cache"
    (tmp_path / "bundle" / "part" / "backend.py").write_text(BIG_BACKEND)
    bundle = msgspec.structs.replace(bundle, disk_bytes=6_300_000_000)
    for where, full, variable in (
        (tmp_path / "uv", cache, "ART_CACHE_DIR"),
        (small_disk / "uv", cache, "ART_CACHE_DIR"),
    ):
        monkeypatch.setenv("UV_CACHE_DIR", str(where))
        with pytest.raises(NoRoomError) as raised:
            await build_environment(bundle, cache, deadline_s=60)
        text = str(raised.value)
        assert text.startswith(f"{full} is full: there was no room left for environment 'toy'. ")
        assert "has 8 MB" in text
        assert "needs up to 6.3 GB" in text
        assert text.endswith(f"or set {variable} to a folder with 6.3 GB free, and start again")
        assert "\n" not in text
        assert entries(cache) == []
    monkeypatch.setenv("UV_CACHE_DIR", str(small_disk / "uv"))
    with pytest.raises(NoRoomError, match=rf"^{small_disk}/uv is full: .* or set UV_CACHE_DIR to a folder"):
        await build_environment(bundle, tmp_path / "roomy", deadline_s=60)


async def test_a_disk_that_is_full_before_uv_starts_is_named_too(tmp_path, small_disk):
    bundle, cache = make_bundle(tmp_path / "bundle"), small_disk / "cache"
    (tmp_path / "bundle" / "part" / "big").write_bytes(bytes(40_000_000))
    with pytest.raises(NoRoomError, match=rf"^{cache} is full: .* set ART_CACHE_DIR to a folder with more"):
        await build_environment(bundle, cache, deadline_s=60)
    assert entries(cache) == []
