"""Room for what must be fetched, in both caches; nothing is fetched and nothing is made by looking."""

import os
from pathlib import Path

import pytest

from art.checks import State, cache
from art.checks.cache import MODEL_BYTES, VLLM_BYTES, Fetched, fetch_checks, room_check


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    here, uv = tmp_path / "art", tmp_path / "uv"
    monkeypatch.setenv("ART_CACHE_DIR", str(here))
    monkeypatch.setenv("UV_CACHE_DIR", str(uv))
    monkeypatch.delenv("ART_VLLM_RUNTIME_BIN", raising=False)
    return here, uv


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch):
    def set_state(*, cached: bool, problem: str = "") -> None:
        disk_bytes = 0 if cached or problem else VLLM_BYTES
        found = Fetched(
            name="vLLM for CPUs", folder=None, cached=cached, disk_bytes=disk_bytes, problem=problem
        )
        monkeypatch.setattr(cache, "vllm_runtime", lambda: found)

    return set_state


def missing(*names: str) -> list[Fetched]:
    sizes = {"vLLM for CPUs": VLLM_BYTES, "model": MODEL_BYTES}
    return [Fetched(name=name, folder=None, cached=False, disk_bytes=sizes[name]) for name in names]


def filled(uv: Path) -> None:
    (uv / "archive-v0" / "something").mkdir(parents=True)


def test_the_folders_follow_the_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    for name in ("ART_CACHE_DIR", "UV_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache.cache_folder() == Path("/home/someone/.cache/art")
    assert cache.uv_cache_folder() == Path("/home/someone/.cache/uv")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.uv_cache_folder() == Path("/x/uv")
    monkeypatch.setenv("UV_CACHE_DIR", "/u")
    monkeypatch.setenv("ART_CACHE_DIR", "/a")
    assert (cache.cache_folder(), cache.uv_cache_folder()) == (Path("/a"), Path("/u"))


def test_room_for_everything_passes_without_a_look_into_the_caches(caches, room, monkeypatch):
    def must_not_be_called() -> Fetched:
        raise AssertionError("the caches were looked into")

    monkeypatch.setattr(cache, "vllm_runtime", must_not_be_called)
    monkeypatch.setattr(cache, "demo_model", must_not_be_called)
    (check,) = fetch_checks(with_model=True)
    assert check.state is State.OK
    assert not caches[0].exists()


def test_with_everything_cached_a_full_disk_does_not_matter(caches, room, vllm):
    room(caches[0].parent, 1000)
    vllm(cached=True)
    (check,) = fetch_checks(with_model=False)
    assert check.state is State.OK


def test_a_full_disk_says_how_much_is_missing_and_what_to_do(caches, room, vllm):
    room(caches[0].parent, 10**9)
    vllm(cached=False)
    (check,) = fetch_checks(with_model=False)
    assert check.state is State.FAILURE
    assert "1.0 GB free" in check.found
    assert "6.3 GB" in check.needed
    assert "vLLM for CPUs" in check.needed
    assert check.remedy.startswith("free 5.3 GB, or set ART_CACHE_DIR")


def test_what_uv_has_already_is_not_known_so_a_filled_cache_is_a_warning(caches, room):
    here, uv = caches
    room(here.parent, 10**9)
    assert room_check(here, uv, missing("vLLM for CPUs")).state is State.FAILURE
    filled(uv)
    assert room_check(here, uv, missing("vLLM for CPUs")).state is State.WARNING
    room(here.parent, 10**8)
    assert room_check(here, uv, missing("vLLM for CPUs")).state is State.FAILURE


def test_the_models_weights_do_not_come_from_uvs_cache(caches, room):
    here, uv = caches
    filled(uv)
    room(here.parent, MODEL_BYTES - 1)
    assert room_check(here, uv, missing("model")).state is State.FAILURE


def test_two_file_systems_need_the_room_twice(caches, room):
    here, uv = caches
    room(here, 10**10, device=1)
    room(uv, 10**9, device=2)
    check = room_check(here, uv, missing("vLLM for CPUs"))
    assert check.state is State.FAILURE
    assert check.name == "disk of uv's cache"
    assert "UV_CACHE_DIR" in check.remedy
    filled(uv)
    assert room_check(here, uv, missing("vLLM for CPUs")).state is State.WARNING
    room(here, 10**9, device=1)
    assert room_check(here, uv, missing("vLLM for CPUs")).name == "disk of the cache"


def test_a_cache_folder_below_a_file_is_refused(tmp_path, caches, vllm, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ART_CACHE_DIR", str(tmp_path / "file" / "art"))
    vllm(cached=False)
    (check,) = fetch_checks(with_model=False)
    assert check.state is State.FAILURE
    assert "is a file" in check.found
    assert "ART_CACHE_DIR" in check.remedy


def test_a_runtime_that_cannot_be_used_is_told(caches, vllm, monkeypatch):
    monkeypatch.setenv("ART_VLLM_RUNTIME_BIN", "/nowhere/server")
    vllm(cached=False, problem="the path does not end as that of an environment's command")
    (check,) = fetch_checks(with_model=False)
    assert check.state is State.FAILURE
    assert "unset ART_VLLM_RUNTIME_BIN" in check.remedy


def test_the_demos_model_is_found_where_the_demo_puts_it(caches):
    from art.demo import model as demo

    found = cache.demo_model()
    assert (found.cached, found.disk_bytes) == (False, MODEL_BYTES)
    assert found.folder is not None
    assert found.folder.parent == caches[0] / "models"
    found.folder.mkdir(parents=True)
    (found.folder / "config.json").write_text("{}")
    (found.folder / "manifest.json").write_text(
        '{"model": "m", "license": "l", "source": {}, '
        '"files": {"config.json": {"byte_count": 2, "sha256": ""}}}'
    )
    assert demo.read_manifest(found.folder).model == "m"
    assert cache.demo_model().cached
    (found.folder / "config.json").write_text("{} ")
    assert not cache.demo_model().cached


@pytest.mark.parametrize(("version", "state"), [("3.12.9", State.OK), ("3.12.0", State.OK)])
def test_vllm_runs_on_this_python(version, state, monkeypatch):
    monkeypatch.setattr(cache.machine, "python_version", lambda: version)
    assert cache.runtime_python_check().state is state


@pytest.mark.parametrize("variable", ["ART_CACHE_DIR", "HOME"])
def test_a_relative_cache_is_below_the_current_folder(tmp_path, monkeypatch, variable):
    from art.checks.places import make_absolute

    monkeypatch.delenv("ART_CACHE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "some/folder")
    below = tmp_path / "some" / "folder"
    wanted = below if variable == "ART_CACHE_DIR" else below / ".cache" / "art"
    assert cache.cache_folder() == wanted
    assert make_absolute() is None
    assert os.environ[variable] == str(below)
    monkeypatch.chdir("/")
    assert cache.cache_folder() == wanted


def test_a_home_folder_is_written_as_a_tilde(tmp_path, monkeypatch):
    from art.checks.places import make_absolute

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ART_CACHE_DIR", "~/cache")
    monkeypatch.setenv("ART_STATE_DIR", "~nobody-of-this-name/x")
    assert "ART_STATE_DIR='~nobody-of-this-name/x'" in str(make_absolute())
    assert os.environ["ART_CACHE_DIR"] == str(tmp_path / "cache")
