"""The tiny model is made once; every test gets a run folder and a leftover checker of its own."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from art_testing.leftovers import LeftoverChecker
from art_testing.tiny_model import make_tiny_llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def checker() -> Iterator[LeftoverChecker]:
    with tempfile.TemporaryDirectory(prefix="art-") as temporary:  # short: sockets have to fit into it
        yield LeftoverChecker(Path(temporary))
