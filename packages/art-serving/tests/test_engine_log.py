"""Of a server's log the one line that says what it died of."""

import pytest

from art_serving.engine_log import last_line, root_cause

ENGINE = "(EngineCore pid=27560) ERROR 11-29 22:08:25 [core.py:1510] "
LOG = f"""\
ART 0.0 s: importing vLLM
(MainProcess pid=27258) INFO 11-29 22:08:24 [model.py:733] Resolved architecture: LlamaForCausalLM
{ENGINE}EngineCore failed to start.
{ENGINE}Traceback (most recent call last):
{ENGINE}  File "core.py", line 1, in run
{ENGINE}    socket()
{ENGINE}RuntimeError: socket: Too many open files
Process EngineCore:
Traceback (most recent call last):
  File "process.py", line 1, in _bootstrap
    self.run()
RuntimeError: socket: Too many open files
Traceback (most recent call last):
  File "server.py", line 9, in main
    wait()
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""
CHAINED = """\
Traceback (most recent call last):
  File "a.py", line 1, in <module>
KeyError: 'model_type'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 1, in <module>
ValueError: no model_type
"""
SEVERAL_LINES = """\
Traceback (most recent call last):
  File "a.py", line 1, in <module>
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, the model has no weights
    For further information visit a page
  more
"""
MIXED = """\
(EngineCore pid=2) Traceback (most recent call last):
(EngineCore pid=2)   File "a.py", line 1, in <module>
(MainProcess pid=1) INFO 11-29 22:08:24 [a.py:1] something: else
(EngineCore pid=2) OSError: disk
"""
INDENTED = """\
  Traceback (most recent call last):
    File "a.py", line 1, in <module>
  OSError: disk
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (LOG, "RuntimeError: socket: Too many open files"),
        (CHAINED, "KeyError: 'model_type'"),
        (
            SEVERAL_LINES,
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig "
            "Value error, the model has no weights For further information visit a page",
        ),
        (MIXED, "OSError: disk"),
        (INDENTED, "OSError: disk"),
        ("Traceback (most recent call last):\n  File\nKeyboardInterrupt\n", "KeyboardInterrupt"),
        ("Traceback (most recent call last):\n  File\n", None),
        ("all is well\n", None),
        ("", None),
    ],
)
def test_the_first_exception_is_the_cause(text, cause):
    assert root_cause(text) == cause


def test_a_long_message_is_cut():
    found = root_cause(f"Traceback (most recent call last):\nOSError: {'x' * 5000}\n")
    assert found.startswith("OSError: xxx")
    assert len(found) == 500


def test_the_last_line_is_what_a_log_without_a_traceback_says():
    assert last_line("ART 1.0 s: importing vLLM\nARTerror\n\n  \n") == "ARTerror"
    assert last_line("\n") == "nothing"
