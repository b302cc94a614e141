"""Values of the user's own types cross processes as data; code does not."""

import dataclasses
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from art.distributed import CallableError, user_values

SCRIPT = """
import dataclasses, sys
from art.distributed import user_values

@dataclasses.dataclass
class Scenario:
    number: int

if __name__ == "__main__":
    command, path = sys.argv[1:3]
    if command == "write":
        open(path, "wb").write(user_values.pack({"s": Scenario(3)}, "x"))
    else:
        value = user_values.unpack(open(path, "rb").read())["s"]
        assert isinstance(value, Scenario), type(value).__module__
        print(value.number)
"""


@pytest.mark.parametrize("value", [None, "text", 3, [1.5, {"a": (1, 2)}], b"bytes", Path("/x")])
def test_plain_values_come_back_equal(value: Any) -> None:
    assert user_values.unpack(user_values.pack(value, "x")) == value


def test_a_class_of_the_started_script_arrives_where_the_script_is_imported(tmp_path: Path) -> None:
    script, data = tmp_path / "my_script.py", tmp_path / "data"
    script.write_text(SCRIPT)
    subprocess.run([sys.executable, str(script), "write", str(data)], check=True)
    imported = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from art.distributed import user_values; "
        f"value = user_values.unpack(open({str(data)!r}, 'rb').read())['s']; "
        "import my_script; assert type(value) is my_script.Scenario; "
        f"open({str(data)!r}, 'wb').write(user_values.pack({{'s': value}}, 'x'))"
    )
    subprocess.run([sys.executable, "-c", imported], check=True)
    back = subprocess.run(
        [sys.executable, str(script), "read", str(data)], check=True, capture_output=True, text=True
    )
    assert back.stdout.strip() == "3"


@dataclasses.dataclass
class _Held:
    value: Any


@pytest.mark.parametrize("value", [lambda: None, threading.Lock(), _Held(lambda: None), (n for n in ())])
def test_what_is_not_data_is_refused(value: Any) -> None:
    with pytest.raises(CallableError, match=r"the scenario of type .* cannot be sent to another process"):
        user_values.pack(value, "the scenario")
