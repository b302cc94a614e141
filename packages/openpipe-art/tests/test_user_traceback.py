"""A traceback shows the lines that its reader wrote."""

import json
import sysconfig
from pathlib import Path

import pytest

from art.distributed.user_traceback import rollout_traceback, user_traceback
from art.errors import ArtError, ConfigError
from art.messages import checked
from art.user_code import definition, described, is_users, shown, user_place


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


def test_an_error_of_art_s_alone_has_no_traceback() -> None:
    error = ConfigError("the text says it all")
    assert rollout_traceback(error) == ""
    assert "ValueError" in rollout_traceback(ValueError("x"))
    with pytest.raises(ArtError) as found:
        raise error
    assert "raise error" in rollout_traceback(found.value)


async def answer() -> str:
    return "yes"


@pytest.mark.parametrize(
    "use",
    [
        lambda waiting: waiting.choices[0],
        lambda waiting: waiting + "!",
        lambda waiting: float(waiting),
        lambda waiting: list(waiting),
        lambda waiting: waiting["x"],
        lambda waiting: json.dumps({"answer": waiting}),
    ],
)
def test_using_a_coroutine_as_its_result_asks_for_the_await(use) -> None:
    waiting = answer()
    assert caught(lambda: use(waiting)).endswith("\ndid you forget `await`?\n")
    waiting.close()


def test_an_error_with_another_cause_is_not_about_await() -> None:
    assert not caught(lambda: {}["coroutine"]).endswith("await`?\n")
    assert not caught(lambda: 1 + "1").endswith("await`?\n")


def test_what_is_the_user_s() -> None:
    import pydantic

    import art_topology
    from art.demo import task

    assert is_users(__file__)
    assert is_users(task.__file__)
    assert not any(map(is_users, (art_topology.__file__, pydantic.__file__, json.__file__, "<string>")))
    assert user_place().startswith(f"{__file__}:")
    assert user_place().endswith(", in test_what_is_the_user_s")
    assert definition(answer) == f"answer ({__file__}:{answer.__code__.co_firstlineno})"


def test_values_are_shown_in_one_short_line() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError

    assert shown("a\nb") == "'a\\nb'"
    assert len(shown(list(range(1000)))) < 100
    assert shown(Broken()) == "<Broken whose repr() raises ValueError>"
    assert described(None) == "None"
