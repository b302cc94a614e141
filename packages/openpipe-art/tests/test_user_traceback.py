"""A traceback shows the lines that its reader wrote."""

import json
import sysconfig
from pathlib import Path

import pytest

from art.distributed.user_traceback import user_traceback
from art.messages import checked


def frames(text: str) -> list[str]:
    return [line.split('"')[1] for line in text.splitlines() if line.startswith("  File ")]


def caught(function) -> str:
    with pytest.raises(Exception) as found:  # noqa: PT011 - any
        function()
    return user_traceback(found.value)


def broken_json() -> None:
    json.loads("{x")


def test_of_a_library_s_frames_the_last_is_shown() -> None:
    text = caught(broken_json)
    assert [Path(name).name for name in frames(text)[-2:]] == ["test_user_traceback.py", "decoder.py"]
    assert Path(frames(text)[-1]).is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())
    assert 'json.loads("{x")' in text
    assert "JSONDecodeError" in text
    assert text.endswith("of ART and libraries not shown]\n")


def test_art_s_frames_are_not_shown() -> None:
    text = caught(lambda: checked(["no message"]))
    assert not [name for name in frames(text) if "/art/messages.py" in name]
    assert Path(frames(text)[-1]).name == "test_user_traceback.py"


def test_the_lines_of_the_demo_are_a_user_s() -> None:
    from art.demo import task

    text = caught(lambda: task.word(None))
    assert Path(frames(text)[-1]).name == "task.py"


def test_causes_are_shown_the_same_way() -> None:
    def wrapped() -> None:
        try:
            broken_json()
        except ValueError as error:
            raise RuntimeError("outer") from error

    text = caught(wrapped)
    assert text.index("JSONDecodeError") < text.index("direct cause") < text.index("RuntimeError: outer")
    assert len([name for name in frames(text) if name.endswith("decoder.py")]) == 1


def test_an_exception_without_a_user_s_line_is_shown_whole() -> None:
    try:
        eval(compile("1/0", "<string>", "eval"))
    except ZeroDivisionError as error:
        error.__traceback__ = error.__traceback__.tb_next
        text = user_traceback(error)
    assert frames(text) == ["<string>"]
    assert "not shown" not in text
