"""The example is the program that `art demo` runs, and can be run and copied."""

import shutil
from pathlib import Path

import art.demo.yes_no_maybe.train as program
from art.distributed.programs import parse_program

EXAMPLE = Path(__file__).parents[2] / "examples" / "yes_no_maybe" / "train.py"


def test_the_example_is_the_program_of_the_demo() -> None:
    assert EXAMPLE.read_bytes() == Path(program.__file__).read_bytes()


def test_a_copy_of_the_example_is_a_program_of_its_own(tmp_path: Path) -> None:
    copy = Path(shutil.copy(EXAMPLE, tmp_path / "my_yes_no_maybe.py"))
    assert not copy.is_symlink()
    main = parse_program(f"{copy}:main").load()
    assert main.__module__ == "my_yes_no_maybe"
    assert main is not program.main
