"""What the README shows is what happens: its file, its commands and its programs, in order, in one folder."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from art_topology.command import run

HERE = Path(__file__).parent
README = (HERE.parent / "README.md").read_text(encoding="utf-8")
MODEL = "Qwen/Qwen3-30B-A3B"

_BLOCK = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
_DURATION = re.compile(r"\b\d+\.\d+ s$", re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's, with the model that the README speaks of."""
    models = json.loads((HERE / "published_models.json").read_text(encoding="utf-8"))
    config = next(each["config"] for each in models if each["name"] == MODEL)
    (tmp_path / MODEL.rpartition("/")[2]).mkdir()
    (tmp_path / MODEL.rpartition("/")[2] / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def commands(body: str) -> Iterator[tuple[str, str]]:
    """Each command of a block, with what it is shown to print."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints; ``| head -N`` and ``| tail -N`` are done here."""
    program, *filters = command.split(" | ")
    name, *arguments = shlex.split(program)
    assert name == "art-topology"
    assert run(arguments) in (0, 1)
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    for each in filters:
        kind, count = each.split(" -")
        lines = {"head": lines[: int(count)], "tail": lines[-int(count) :]}[kind]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def test_everything_it_shows_happens(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran, program = [], ""
    for block in _BLOCK.finditer(README):
        info, body = block["info"], block["body"]
        if name := re.fullmatch(r'toml title="([\w.]+)"', info):
            (folder / name[1]).write_text(body, encoding="utf-8")
        elif info == "sh":
            subprocess.run(["sh", "-c", body], check=True, timeout=60)
        elif info == "console":
            for command, shown in commands(body):
                happened = printed(command, capsys)
                assert _DURATION.sub("# s", happened) == _DURATION.sub("# s", shown), (
                    f"$ {command}\n{happened}tools/run_guide.py of the repository writes it into the README"
                )
                ran.append(command.split()[1])
        elif info == "python":
            exec(compile(body, "README.md", "exec"), {})
            program = capsys.readouterr().out
            ran.append("python")
        else:
            assert info == "text"
            assert program == body
    assert {"check", "plan", "explain", "groups", "render", "diff", "python"} <= set(ran)


def test_its_number_of_rules_is_theirs() -> None:
    from art_topology import RULES

    assert f"\n{len(RULES)} rules " in README
    assert f"`compile_topology`: {len(RULES)} rules " in (HERE.parent / "CHANGELOG.md").read_text("utf-8")


def test_its_programs_need_nothing_but_the_package(folder: Path) -> None:
    """No extra is imported by a program, so that the plain install is enough."""
    program = next(b["body"] for b in _BLOCK.finditer(README) if "load_model_config" in b["body"])
    probe = f"{program}\nimport sys\nassert not {{'typer', 'rich', 'yaml', 'numpy'}} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
