"""The built site: complete, linked, and quiet on the network."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    assert {page.name: loads.findall(page.read_text(encoding="utf-8")) for page in pages} == {
        page.name: [] for page in pages
    }
    styles = [path for path in site.rglob("*.css") if re.search(r"url\(\s*[\"']?https?:", path.read_text())]
    assert styles == []


def test_no_page_needs_the_drawing_library_that_the_theme_would_fetch(site: Path) -> None:
    assert [page for page in site.rglob("*.html") if 'class="mermaid"' in page.read_text()] == []


def test_roles_have_become_links(site: Path) -> None:
    page = (site / "reference" / "art_dataplane" / "batches.html").read_text(encoding="utf-8")
    assert 'href="errors.html#art_dataplane.BatchClosedError"' in page
    written = [path for path in site.rglob("*.html") if re.search(r":(class|meth|func):", path.read_text())]
    assert written == []


def test_a_struct_shows_its_fields_with_types(site: Path) -> None:
    page = (site / "reference" / "art_dataplane" / "records.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", page)
    assert re.search(r"prompt_ids:\s*ndarray", text)
    assert "int32 [P]: token ids of the prompt" in text


def test_the_search_knows_every_package(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    titles = {entry["location"].partition("#")[2] for entry in index["docs"]}
    assert {
        "art.TrajectoryGroup",
        "art_topology.compile_topology",
        "art_dataplane.TrajectoryQueue.select",
        "art_kernels.selected_logprobs",
        "art_trainer.rank.TrainerRank.run",
        "art_serving.ModelService.activate",
    } <= titles
