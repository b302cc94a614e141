"""Every file that the package opens is a regular one of bounded size."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from art_topology import SpecError, read_topology
from art_topology.hardware import load_hardware
from art_topology.models import load_model_config
from art_topology.reading import MOST_BYTES, FileRefusedError, TooLargeError

_READERS: list[Callable[[Path], object]] = [
    load_model_config,
    load_hardware,
    read_topology,
    lambda path: read_topology(path, "toml"),
    lambda path: read_topology(path, "json"),
]


def _told(read: Callable[[Path], object], path: Path) -> str:
    with pytest.raises((SpecError, FileRefusedError)) as caught:
        read(path)
    return str(caught.value)


@pytest.mark.parametrize("read", _READERS)
def test_a_pipe_is_refused_and_not_waited_for(read: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    assert "a pipe or a device" in _told(read, tmp_path / "pipe.toml")


@pytest.mark.parametrize("read", [*_READERS[:2], *_READERS[3:]])
def test_a_device_is_refused(read: Callable[[Path], object]) -> None:
    assert "a pipe or a device" in _told(read, Path("/dev/zero"))


@pytest.mark.parametrize("read", _READERS)
def test_a_file_of_more_than_the_limit_is_refused(read: Callable[[Path], object], tmp_path: Path) -> None:
    file = tmp_path / "large.toml"
    with file.open("wb") as opened:
        opened.truncate(MOST_BYTES + 1)
    assert "more than 64 MiB" in _told(read, file)
    with pytest.raises(TooLargeError):
        load_model_config(file)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda folder: folder, "it is a folder"),
        (lambda folder: folder / "a.toml.bak", "suffix '.bak'"),
        (lambda folder: folder / "shadow", "no suffix"),
        (lambda folder: folder / "gone.toml", "No such file"),
    ],
)
def test_a_message_holds_no_other_message(make: Callable[[Path], Path], told: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read_topology(make(tmp_path))
    [found] = caught.value.diagnostics
    assert told in found.message
    assert "error[" not in found.message
    assert "help:" not in found.message
