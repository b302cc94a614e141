"""A benchmark that finds a wrong result, dies, hangs or leaves a process fails the run, with its output."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Plant = Callable[[dict[str, str]], None]

RIGHT = """
import json, sys
print("measuring")
row = {"what": "work", "peer": "peer 1", "unit": "ms", "ours": 1.0, "theirs": 2.0, "ratio": 2.0}
with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
    json.dump({"rows": [row | {"note": str(sys.argv[1:-2])}]}, file)
"""

LEAVES = """
import subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("left", left.pid)
"""

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("child", child.pid, flush=True)
time.sleep(600)
"""


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_all_rows_come_into_one_table_one_file_and_one_page(
    planted: Plant, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.__main__ import main

    planted({"first": RIGHT, "second": RIGHT})
    out, page = tmp_path / "out.json", tmp_path / "page.md"
    assert main(["--quick", "--json", str(out), "--markdown", str(page)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"\[2/2\] second: done in \d+ s", printed)
    assert printed.count("2.00x") == 2
    rows = json.loads(out.read_text())["rows"]
    assert [(row["what"], row["note"]) for row in rows] == [("work", "['--few']")] * 2
    assert page.read_text().count("2.00x") == 2
    assert "- A note." in page.read_text()
    assert main(["second", "--json", str(out)]) == 0
    assert [row["note"] for row in json.loads(out.read_text())["rows"]] == ["[]"]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('sides'); raise SystemExit('the consumers had other bytes')", "status 1"),
        (
            "import os, signal; print('other bytes', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
            "status -9",
        ),
        ("print('other bytes')", "wrote no rows"),
        (
            RIGHT.replace("[row |", "[] and [row |").replace("measuring", "other bytes"),
            "wrote a file without rows",
        ),
        (RIGHT.replace('"what"', '"which"').replace("measuring", "other bytes"), "wrote no rows: .*what"),
    ],
)
def test_a_failed_benchmark_fails_the_table_with_its_output(
    program: str, said: str, planted: Plant, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.__main__ import main

    planted({"wrong": program, "right": RIGHT})
    page = tmp_path / "page.md"
    assert main(["--markdown", str(page)]) == 1
    printed = capsys.readouterr()
    assert re.search(r"\[1/2\] wrong: FAILED after \d+ s", printed.out)
    assert "2.00x" in printed.out  # the others are told all the same
    assert re.search(rf"wrong failed: .*{said}", printed.err)
    assert "other bytes" in printed.err
    assert not page.exists()


def test_a_process_that_is_left_is_ended_and_a_failure(
    planted: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.__main__ import main

    planted({"leaves": LEAVES + RIGHT})
    assert main([]) == 1
    printed = capsys.readouterr().err
    assert re.search(r"left processes, which were killed: \S+ -c import time; time.sleep\(600\)", printed)
    found = re.search(r"left (\d+)", printed)
    assert found
    assert _is_gone(int(found[1]))


def test_a_benchmark_that_does_not_end_is_ended_with_all_that_it_started(planted: Plant) -> None:
    from benchmarks import running

    planted({"hangs": STUBBORN})
    with pytest.raises(running.BenchmarkFailedError, match="not done within 1 s") as caught:
        running.run(sys.executable, ["planted.hangs"], 1.0)
    found = re.search(r"child (\d+)", str(caught.value))
    assert found
    assert _is_gone(int(found[1]))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_benchmark_as_well(number: int, planted: Plant, tmp_path: Path) -> None:
    from benchmarks.__main__ import main

    told = tmp_path / "pid"
    interrupt = f"import os, pathlib; pathlib.Path({str(told)!r}).write_text(str(os.getpid()))\n"
    planted({"hangs": interrupt + f"os.kill(os.getppid(), {int(number)}); import time; time.sleep(600)"})
    with pytest.raises(KeyboardInterrupt):
        main([])
    assert _is_gone(int(told.read_text()))


def test_an_unknown_name_is_refused(planted: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.__main__ import main

    planted({"right": RIGHT})
    with pytest.raises(SystemExit, match="2"):
        main(["wrong"])
    assert "there is no wrong; there are right" in capsys.readouterr().err
