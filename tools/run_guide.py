"""Does what a page tells its reader to do, and shows what the commands really print.

    python tools/run_guide.py             # writes the outputs into the pages of ``PAGES``, and their pictures
    python tools/run_guide.py --check     # exit status 1 where a page shows something else

A fenced block is one step, told by its info string: ``KIND title="NAME"`` is the file NAME; ``sh`` are
commands that print nothing; ``console`` are commands behind ``$``, each with what it prints; ``python`` is a
program, and the ``text`` block after it what it prints, if anything. Other blocks are only read.

Every page is done in an empty folder that holds ``MODEL``. Durations in what is printed may differ.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "docs" / "plan-a-cluster.md",
    ROOT / "packages" / "art-topology" / "README.md",
    ROOT / "docs" / "data-plane.md",
    ROOT / "docs" / "use-from-another-stack.md",
)
PICTURES = {"plan-a-cluster.md": {"run.svg": ROOT / "docs" / "images" / "topology.svg"}}
"""Files that following a page makes, and where they are shown from."""

MODEL = "Qwen3-30B-A3B"
CONFIG = ROOT / "packages" / "art-topology" / "accuracy" / "models" / "qwen3-30b-a3b.json"

FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r'\w+ title="(?P<name>[\w.-]+)"')
_DURATION = re.compile(r"\b\d+\.\d+ s$", re.MULTILINE)
_COMMAND_S = 120.0


class GuideError(Exception):
    """A command that a page shows does not do what it should."""


def followed(markdown: str, folder: Path) -> str:
    """The page with what its commands print when a reader follows it in ``folder``.

    Raises:
        GuideError: a command fails, or one that should be silent prints something.
    """
    environment = _environment(folder / ".bin")
    parts, end, program = [], 0, ""
    for fence in FENCE.finditer(markdown):
        info, body = fence["info"], fence["body"]
        title = _TITLE.fullmatch(info)
        if title is not None:
            (folder / title["name"]).write_text(body, encoding="utf-8")
        elif info == "sh":
            if printed := _run(body, folder, environment):
                raise GuideError(f"{body}prints {printed!r}")
        elif info == "console":
            body = "".join(
                f"$ {command}\n{_run(command, folder, environment)}" for command in _commands(body)
            )
        elif info == "python":
            printed = _run(
                f"{sys.executable} - <<'END_OF_PROGRAM'\n{body}\nEND_OF_PROGRAM", folder, environment
            )
            program = printed
        elif info == "text" and program:
            body, program = program, ""
        parts += [markdown[end : fence.start("body")], body]
        end = fence.end("body")
    return "".join([*parts, markdown[end:]])


def follow(page: Path, pictures: Path | None = None) -> str:
    """:func:`followed` for a file, in a folder of its own; copies its pictures into ``pictures``."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / MODEL).mkdir()
        shutil.copy(CONFIG, folder / MODEL / "config.json")
        text = followed(page.read_text(encoding="utf-8"), folder)
        for made, shown in PICTURES.get(page.name, {}).items():
            if pictures is not None:
                shutil.copy(folder / made, pictures / shown.name)
        return text


def timeless(text: str) -> str:
    """``text`` without the durations at the ends of its lines."""
    return _DURATION.sub("# s", text)


def main(arguments: list[str]) -> int:
    """Writes or checks all pages."""
    wrong = 0
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        if arguments == ["--check"]:
            same = timeless(follow(page)) == timeless(before)
            print(
                f"{page.name} {'shows what happens' if same else 'is out of date: python tools/run_guide.py'}"
            )
            wrong += not same
        else:
            after = follow(page, ROOT / "docs" / "images")
            if timeless(after) != timeless(before):
                page.write_text(after, encoding="utf-8")
    return int(wrong > 0)


def _commands(body: str) -> list[str]:
    return [part.partition("\n")[0] for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]]


def _environment(programs: Path) -> dict[str, str]:
    """With the command of this Python first on the path, and tables of one width."""
    programs.mkdir()
    for name, options in (("art-topology", " -m art_topology.command"), ("python", "")):
        command = programs / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}"{options} "$@"\n')
        command.chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return os.environ | {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1"}


def _run(command: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_COMMAND_S,
        check=False,
    )
    if done.returncode not in (0, 1) or "Traceback" in done.stdout:
        raise GuideError(f"$ {command}\n{done.stdout}ends with {done.returncode}")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
