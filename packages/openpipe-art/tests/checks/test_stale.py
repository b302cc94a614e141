"""What earlier versions left in the cache is listed and can be removed; what is in use never is."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from art.checks import stale

OLD, OLDER, NEW = ("vllm-cpu-" + digit * 32 for digit in "abc")


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ART_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("ART_VLLM_RUNTIME_BIN", raising=False)
    folder = tmp_path / "environments"
    for name in (OLD, OLDER, NEW):
        (folder / name / ".venv" / "lib").mkdir(parents=True)
        (folder / name / ".venv" / "lib" / "data.so").write_bytes(os.urandom(100_000))
        (folder / f"{name}.lock").write_text("")
    monkeypatch.setattr(stale, "demo_entries", lambda: frozenset([folder / NEW]))
    return folder


def names(entries) -> list[str]:
    return [entry.folder.name for entry in entries]


def test_everything_but_this_versions_own_is_listed_with_its_size(cache):
    entries = stale.stale_entries()
    assert names(entries) == [OLD, OLDER]
    assert all(100_000 <= entry.disk_bytes <= 110_000 for entry in entries)
    assert all(entry.whole and not entry.user for entry in entries)


def test_a_file_that_uvs_cache_shares_frees_nothing(cache, tmp_path):
    os.link(cache / OLD / ".venv" / "lib" / "data.so", tmp_path / "in-uvs-cache")
    sizes = {entry.folder.name: entry.disk_bytes for entry in stale.stale_entries()}
    assert sizes[OLD] == 0
    assert sizes[OLDER] >= 100_000


def test_a_file_that_only_stale_entries_share_counts_once(cache):
    os.link(cache / OLD / ".venv" / "lib" / "data.so", cache / OLDER / "same")
    sizes = {entry.folder.name: entry.disk_bytes for entry in stale.stale_entries()}
    assert sizes[OLD] == 0
    assert 200_000 <= sizes[OLDER] <= 220_000


def test_counting_has_an_end(cache):
    assert [entry.whole for entry in stale.stale_entries(count_s=-1.0)] == [False, False]


def test_pruning_removes_them_and_their_locks_and_nothing_else(cache):
    (cache / "notes").mkdir()
    (cache / "vllm-cpu-short").mkdir()
    assert [removal.problem for removal in stale.prune()] == ["", ""]
    assert sorted(path.name for path in cache.iterdir()) == sorted(
        [NEW, f"{NEW}.lock", "notes", "vllm-cpu-short"]
    )
    assert stale.prune() == ()


def test_one_that_is_being_built_is_kept(cache):
    with (cache / f"{OLD}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        users = {entry.folder.name: entry.user for entry in stale.stale_entries()}
        assert users == {OLD: "the process that builds it", OLDER: ""}
        assert [bool(removal.problem) for removal in stale.prune()] == [True, False]
        assert (cache / OLD / ".venv" / "lib" / "data.so").exists()


def test_one_that_a_process_runs_from_is_kept(cache):
    code = f"import sys; print(sys.stdin.readline() and {str(cache / OLD)!r})"
    program = [sys.executable, "-c", code, str(cache / OLD / ".venv" / "bin" / "python")]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
        try:
            users = {entry.folder.name: entry.user for entry in stale.stale_entries()}
            assert users == {OLD: f"process {process.pid}", OLDER: ""}
            kept = {removal.entry.folder.name: removal.problem for removal in stale.prune()}
            assert kept == {OLD: f"in use by process {process.pid}", OLDER: ""}
        finally:
            process.kill()
    assert names(stale.stale_entries()) == [OLD]


def test_one_that_the_user_named_is_kept(cache, monkeypatch):
    named = cache / OLD / ".venv" / "bin" / "art-vllm-runtime-server"
    monkeypatch.setenv("ART_VLLM_RUNTIME_BIN", str(named))
    assert names(stale.stale_entries()) == [OLDER]


def test_what_an_interrupted_removal_left_is_removed_by_the_next(cache):
    (cache / OLD).rename(cache / f".removed-{OLD}")
    assert sorted(names(stale.stale_entries())) == sorted([f".removed-{OLD}", OLDER])
    stale.prune()
    assert not (cache / f".removed-{OLD}").exists()
    assert not (cache / f"{OLD}.lock").exists()


def test_a_link_is_not_followed(cache, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (cache / ("vllm-cpu-" + "d" * 32)).symlink_to(elsewhere)
    stale.prune()
    assert elsewhere.exists()


def test_where_this_versions_own_is_not_known_nothing_is_listed(cache, monkeypatch):
    monkeypatch.setattr(stale, "demo_entries", lambda: None)
    assert stale.stale_entries() == ()
    assert stale.prune() == ()


def test_without_a_cache_there_is_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("ART_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.setattr(stale, "demo_entries", lambda: frozenset())
    assert stale.stale_entries() == ()
    (tmp_path / "none").write_text("a file")
    assert stale.stale_entries() == ()
