"""Checks and builds mean the same cache."""

from pathlib import Path

import pytest

from art.checks import cache
from art_serving import default_cache_root, vllm_bundle


@pytest.mark.parametrize("variable", ["ART_CACHE_DIR", "HOME"])
def test_a_relative_cache_is_the_same_folder_to_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("ART_CACHE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "some/folder")
    assert default_cache_root() == cache.cache_folder()
    assert cache.cache_folder().is_relative_to(tmp_path / "some" / "folder")


def test_a_check_before_the_build_and_the_build_itself_tell_the_same_size() -> None:
    assert vllm_bundle().disk_bytes == cache.VLLM_BYTES
