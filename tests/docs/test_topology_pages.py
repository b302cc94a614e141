"""The pages about art-topology show what happens."""

import re
from pathlib import Path

import pytest


@pytest.mark.parametrize("page", ["docs/plan-a-cluster.md", "packages/art-topology/README.md"])
def test_commands_and_programs_print_what_the_page_shows(repository: Path, page: str, tmp_path: Path) -> None:
    from run_guide import PICTURES, follow, timeless

    path = repository / page
    shown = path.read_text(encoding="utf-8")
    assert timeless(follow(path, tmp_path)) == timeless(shown)
    for picture in PICTURES.get(path.name, {}).values():
        assert (tmp_path / picture.name).read_text() == picture.read_text(), (
            "python tools/run_guide.py draws it"
        )


def test_what_a_page_shows_wrongly_is_found(tmp_path: Path) -> None:
    from run_guide import GuideError, followed, timeless

    page = "```console\n$ echo 'took 0.3 s '\ntook 0.1 s\n$ echo two\none\n```\n"
    assert (
        timeless(followed(page, tmp_path))
        == "```console\n$ echo 'took 0.3 s '\ntook # s\n$ echo two\ntwo\n```\n"
    )
    (tmp_path / "again").mkdir()
    with pytest.raises(GuideError, match="ends with 3"):
        followed("```console\n$ exit 3\n```\n", tmp_path / "again")


def test_the_page_of_the_command_is_current(repository: Path) -> None:
    from command_page import PAGE, page

    assert PAGE.read_text(encoding="utf-8") == page(), "python tools/command_page.py writes it"
    assert repository in PAGE.parents


def test_the_hardware_that_the_reference_adds_can_be_added(repository: Path) -> None:
    from art_topology.hardware import parse_hardware

    page = (repository / "docs" / "reference" / "art_topology" / "hardware.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    machine = parse_hardware(text).machine("H900")
    assert (machine.name, machine.gpus_per_host, machine.scale_up.name) == ("HGX-H900", 8, "NVLink4")


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_names_of_other_projects_in_docstrings_exist_there() -> None:
    """Those of megatron-core, whose source is installed; nothing of it is imported."""
    import ast
    from importlib.util import find_spec

    from check_docstrings import EXTERNAL

    spec = find_spec("megatron.core")
    assert spec is not None
    assert spec.origin is not None
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(spec.origin).parent.rglob("*.py")]
    found: set[str] = set()
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found.add(node.name)
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                found |= {f"{node.name}.{method.name}" for method in methods}
    assert set(EXTERNAL["megatron.core"]) <= found
