"""Whether packages can be fetched: looked at on request only, by uv, with the index that it is set to."""

import importlib.util
import re
import shutil
import subprocess
import time

from art.checks.results import Check, failed, passed

_LONGEST = 200
_MARKS = re.compile(r"^(error:|cause:|caused by:|[^\x00-\x7f\s]+)\s*", re.IGNORECASE)
"""What uv puts before an error and its causes: words, or lines that it draws."""
_PROBE = "packaging"
"""A small package that ART depends on."""


def package_index_check(deadline_s: float = 20.0) -> Check:
    """Has uv resolve one small package, without its cache; installs nothing.

    Args:
        deadline_s: for uv to answer, in seconds.
    """
    name = "package index"
    uv = _uv()
    if uv is None:
        return failed(name, "uv is not installed", remedy="pip install uv")
    started = time.monotonic()
    command = [uv, "pip", "compile", "--quiet", "--no-cache", "--no-header", "--color", "never", "-"]
    try:
        done = subprocess.run(
            command, input=f"{_PROBE}\n", capture_output=True, text=True, timeout=deadline_s, check=False
        )
    except subprocess.TimeoutExpired:
        return failed(name, f"did not answer within {deadline_s:g} s", remedy=_REMEDY)
    if done.returncode != 0:
        reason = _essence(done.stderr) or f"uv ended with exit status {done.returncode}"
        return failed(name, reason, remedy=_REMEDY)
    return passed(name, f"answered in {time.monotonic() - started:.1f} s")


_REMEDY = "check the network, and the index and proxy that uv is set to (UV_DEFAULT_INDEX, HTTPS_PROXY)"


def _essence(text: str) -> str:
    """Of uv's error and its causes the first two and the last, each once, in one line."""
    lines = [_MARKS.sub("", line.strip()) for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("hint:", "warning:"))]
    return ": ".join(_shortened(line) for line in dict.fromkeys([*lines[:2], *lines[-1:]]))


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4]} ..."


def _uv() -> str | None:
    if importlib.util.find_spec("uv") is not None:
        import uv

        return str(uv.find_uv_bin())
    return shutil.which("uv")
