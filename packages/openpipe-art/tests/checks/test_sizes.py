"""One convention: memory in powers of two, disk and downloads in powers of ten."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.checks import cache
from art.checks.sizes import disk_size, memory_size
from art.demo import command

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
DECIMAL = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@pytest.mark.parametrize(
    ("count", "memory", "disk"),
    [
        (0, "0 B", "0 B"),
        (512, "512 B", "512 B"),
        (2048, "2 KiB", "2 KB"),
        (48 << 20, "48 MiB", "50 MB"),
        (int(5.7 * 2**30), "5.7 GiB", "6.1 GB"),
        (6_300_000_000, "5.9 GiB", "6.3 GB"),
        (3 * 10**12, "2.7 TiB", "3.0 TB"),
    ],
)
def test_sizes_are_for_people(count, memory, disk):
    assert memory_size(count) == memory
    assert disk_size(count) == disk


@given(st.integers(0, 10**16))
def test_what_is_shown_is_within_a_tenth_of_a_unit_or_half_of_one(count):
    for shown, units in ((memory_size(count), UNITS), (disk_size(count), DECIMAL)):
        number, unit = shown.split()
        assert abs(float(number) * units[unit] - count) <= units[unit] * (0.051 if "." in number else 0.5)


def test_the_help_of_the_demo_tells_the_same_sizes():
    told = " ".join(command.EPILOG.split())
    own = cache.VLLM_FETCHED_BYTES - cache.TORCH_FETCHED_BYTES
    assert f"vLLM for CPUs {disk_size(own)} to fetch, {disk_size(cache.VLLM_BYTES)} of disk" in told
    model = f"{disk_size(cache.MODEL_FETCHED_BYTES)} to fetch, {cache.MODEL_BYTES / 1e9:.1f} GB of disk"
    assert f"SmolLM2-135M-Instruct {model}" in told
    assert f"fetches them again ({disk_size(cache.VLLM_FETCHED_BYTES)})" in told


def test_every_size_in_the_checks_is_made_here():
    """No check divides bytes itself."""
    for path in Path(cache.__file__).parent.glob("*.py"):
        if path.name != "sizes.py":
            assert not re.search(r"/ ?(2 ?\*\* ?30|1e9|10 ?\*\* ?9|\(1 << 30\))", path.read_text()), path.name
