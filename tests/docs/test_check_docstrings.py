"""The check of the docstrings finds what is planted, and nothing in what is right."""

from collections.abc import Callable
from pathlib import Path

import pytest

Faults = Callable[..., list[str]]

GOOD = '''
import msgspec
import numpy as np


class PlantedError(Exception):
    """It went wrong."""


class Sizes(msgspec.Struct, frozen=True):
    """What was counted.

    Args:
        byte_count: bytes in all.
        wait_s: seconds it took; None while it lasts.
    """

    byte_count: int
    wait_s: float | None = None

    @property
    def rows(self) -> np.ndarray:
        """int32 ``[R]``: the rows."""
        return np.zeros(3, np.int32)


def f(values: np.ndarray, deadline_s: float) -> Sizes:
    """Counts, see :class:`Sizes` and :attr:`Sizes.rows`.

    Args:
        values: float32 ``[N, 2]``.
        deadline_s: seconds from now.

    Raises:
        PlantedError: there are none.
    """
    if not len(values):
        raise PlantedError("none")
    return Sizes(values.nbytes)
'''


def test_what_is_documented_has_no_fault(faults: Faults) -> None:
    assert faults(GOOD) == []


def test_a_missing_docstring_is_found(faults: Faults) -> None:
    assert faults("def f(): pass\n") == ["planted.code.f: has no docstring"]


def test_a_missing_docstring_of_a_method_is_found(faults: Faults) -> None:
    source = 'class f:\n    """A class."""\n    def go(self): pass\n    def _hidden(self): pass\n'
    assert faults(source) == ["planted.code.f.go: has no docstring"]


def test_a_parameter_that_args_leaves_out_is_found(faults: Faults) -> None:
    source = GOOD.replace("        deadline_s: seconds from now.\n", "")
    assert faults(source) == ["planted.code.f: deadline_s is not documented"]


def test_a_parameter_that_does_not_exist_is_found(faults: Faults) -> None:
    source = GOOD.replace("        deadline_s: seconds", "        limit: also\n        deadline_s: seconds")
    assert faults(source) == ["planted.code.f: Args: limit is no parameter"]


def test_one_line_may_name_few_parameters_by_their_words(faults: Faults) -> None:
    assert faults('def f(path: str):\n    """Reads the file at a path."""\n') == []


def test_one_line_that_names_no_parameter_is_found(faults: Faults) -> None:
    source = 'def f(path: str):\n    """Reads the thing."""\n'
    assert faults(source) == ["planted.code.f: path is not documented"]


def test_three_parameters_need_args_or_backticks(faults: Faults) -> None:
    source = 'def f(a1, b1, c1):\n    """Adds a1, b1 and ``c1``."""\n'
    assert faults(source) == ["planted.code.f: a1 is not documented", "planted.code.f: b1 is not documented"]


def test_a_field_without_a_word_is_found(faults: Faults) -> None:
    source = GOOD.replace("        byte_count: bytes in all.\n", "")
    assert faults(source, public="Sizes") == ["planted.code.Sizes: byte_count is not documented"]


def test_fields_of_a_base_are_asked_for_as_well(faults: Faults) -> None:
    source = (
        GOOD + '\n\nclass More(Sizes, frozen=True):\n    """More of ``wait_s``."""\n\n    extra: int = 0\n'
    )
    found = faults(source, public="More")
    assert found == [
        "planted.code.More: byte_count is not documented",
        "planted.code.More: extra is not documented",
        "planted.code.More: wait_s does not say that it is in seconds",
    ]


def test_a_constructor_is_not_asked_for_where_something_else_makes_the_objects(faults: Faults) -> None:
    source = '''class f:
    """A thing. Made by :meth:`of`."""

    def __init__(self, secret: int) -> None:
        self.secret = secret

    @classmethod
    def of(cls) -> "f":
        """The thing."""
        return cls(1)
'''
    assert faults(source) == []


def test_a_constructor_is_asked_for_elsewhere(faults: Faults) -> None:
    source = 'class f:\n    """A thing."""\n\n    def __init__(self, secret: int) -> None: ...\n'
    assert faults(source) == ["planted.code.f: secret is not documented"]


@pytest.mark.parametrize("wrong", ["float32 values", "of shape ``[N, 2]``"])
def test_an_array_without_shape_or_dtype_is_found(faults: Faults, wrong: str) -> None:
    source = GOOD.replace("float32 ``[N, 2]``", wrong)
    assert faults(source) == ["planted.code.f: values is an array without dtype and [shape]"]


def test_a_property_that_is_an_array_without_shape_is_found(faults: Faults) -> None:
    source = GOOD.replace("int32 ``[R]``: the rows.", "The rows, int32.")
    assert faults(source, public="Sizes") == [
        "planted.code.Sizes.rows: rows is an array without dtype and [shape]"
    ]


def test_units_that_are_left_out_are_found(faults: Faults) -> None:
    source = GOOD.replace("bytes in all", "all").replace("seconds it took", "it took")
    assert faults(source, public="Sizes") == [
        "planted.code.Sizes: byte_count does not say that it is in bytes",
        "planted.code.Sizes: byte_count does not say what it counts",
        "planted.code.Sizes: wait_s does not say that it is in seconds",
    ]


def test_an_exception_that_is_raised_and_not_named_is_found(faults: Faults) -> None:
    source = GOOD.replace("PlantedError: there", "ValueError: there")
    assert faults(source) == ["planted.code.f: raises PlantedError, which Raises: does not name"]


def test_a_base_names_what_is_raised(faults: Faults) -> None:
    assert faults(GOOD.replace("PlantedError: there", "Exception: there")) == []


def test_an_exception_that_does_not_exist_is_found_also_where_it_is_private(faults: Faults) -> None:
    raises = "Raises:\n        LostError: never.\n        Sizes: no.\n"
    source = f'{GOOD}\n\ndef _g() -> None:\n    """Goes.\n\n    {raises}    """\n'
    assert faults(source) == [
        "planted.code._g: Raises: LostError is no exception",
        "planted.code._g: Raises: Sizes is no exception",
    ]


def test_a_role_that_names_nothing_is_found(faults: Faults) -> None:
    assert faults(GOOD.replace(":class:`Sizes`", ":class:`Seizes`")) == [
        "planted.code.f: the role of Seizes names nothing"
    ]


def test_a_name_in_backticks_that_is_gone_is_found(faults: Faults) -> None:
    source = GOOD.replace("Counts, see", "Counts by ``ByteCounter`` and ``count_all()``, see")
    assert faults(source) == [
        "planted.code.f: ``ByteCounter`` names nothing here",
        "planted.code.f: ``count_all()`` names nothing here",
    ]


def test_a_public_name_must_be_on_one_page(faults: Faults) -> None:
    pages = {"one.md": "# One\n\n::: planted.f\n", "two.md": "::: planted.f\n\n::: planted.gone\n"}
    found = faults(GOOD, pages=pages)
    assert "planted.code.f: is on 2 pages of the reference, not on one" in found
    assert "planted.gone: the page shows it but it does not exist" in found


def test_a_public_name_that_is_on_no_page_is_found(faults: Faults) -> None:
    assert faults(GOOD, pages={"one.md": "# One\n"}) == [
        "planted.code.f: is on 0 pages of the reference, not on one"
    ]


def test_a_name_that_users_are_shown_must_be_on_a_page(faults: Faults) -> None:
    assert faults(GOOD, pages={"one.md": "::: planted.f\n"}, shown="planted.code.Sizes") == [
        "planted.code.Sizes: is shown to users but on no page of the reference"
    ]


def test_a_name_that_users_are_shown_may_be_on_the_page_by_another_path(faults: Faults) -> None:
    assert faults(GOOD, pages={"one.md": "::: planted.code.f\n"}, shown="planted.f") == []


def test_a_name_that_users_are_shown_must_exist(faults: Faults) -> None:
    found = faults(GOOD, shown="planted.code.gone")
    assert found == ["planted.code.gone: is shown to users but does not exist"]


def test_a_name_that_users_are_shown_must_be_documented_whole(faults: Faults) -> None:
    source = GOOD.replace("        byte_count: bytes in all.\n", "")
    assert faults(source, shown="planted.code.Sizes") == ["planted.code.Sizes: byte_count is not documented"]


def test_all_of_a_module_that_users_import_from_is_public(faults: Faults) -> None:
    source = f"__all__ = ['Sizes', 'f']\n{GOOD}"
    assert faults(source, pages={"one.md": "::: planted.f\n"}, shown="planted.code.f") == [
        "planted.code.Sizes: is on 0 pages of the reference, not on one"
    ]


def test_what_users_are_shown_is_read_from_programs_and_pages(tmp_path: Path) -> None:
    from check_docstrings import uses_of

    (tmp_path / "examples" / "one").mkdir(parents=True)
    program = "from art.deep import inner\nimport os, art\nart.Top\n"
    (tmp_path / "examples" / "one" / "train.py").write_text(program)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "guide.md").write_text(
        '```python title="a.py"\nimport art\nfrom json import dumps\n```\n'
        "Then\n```python\nart.go(os.path)\n```\n"
        "```console\n$ from art import nothing\n```\n"
    )
    package = tmp_path / "packages" / "art-trainer"
    package.mkdir(parents=True)
    (package / "README.md").write_text("```python\nfrom art_trainer import LoraSpec\n```\n")
    found = {(Path(use.place).name, use.name) for use in uses_of(tmp_path)}
    assert found == {
        ("train.py", "art.deep.inner"),
        ("train.py", "art.Top"),
        ("guide.md", "art.go"),
        ("README.md", "art_trainer.LoraSpec"),
    }


def test_faults_end_the_command_with_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from check_docstrings import PACKAGES, main

    for name in PACKAGES:
        folder = tmp_path / "packages" / name / "src" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text('"""Nothing."""\n')
    assert main([str(tmp_path)]) == 0
    (tmp_path / "packages" / "art" / "src" / "art" / "__init__.py").write_text(
        "def f(): ...\n__all__ = ['f']\n"
    )
    assert main([str(tmp_path)]) == 1
    assert "art.f: has no docstring" in capsys.readouterr().out


def test_every_public_name_of_this_repository_is_documented(repository: Path) -> None:
    from check_docstrings import check, load, uses_of

    packages, uses = load(repository), set(uses_of(repository))
    assert check(packages, repository / "docs" / "reference", uses) == []
    assert len(packages) == 6
    assert {"art.reporting.RunReport", "art.demo.model.ensure_vllm", "art_trainer.rank.TrainerRank"} <= {
        use.name for use in uses
    }
