"""Whether packages can be fetched: looked at on request only, by uv, with the index that it is set to."""

import importlib.util
import shutil
import subprocess
import time

from art.checks.results import Check, failed, passed

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
        reason = " ".join(done.stderr.split())[-300:] or f"uv ended with exit status {done.returncode}"
        return failed(name, reason, remedy=_REMEDY)
    return passed(name, f"answered in {time.monotonic() - started:.1f} s")


_REMEDY = "check the network, and the index and proxy that uv is set to (UV_DEFAULT_INDEX, HTTPS_PROXY)"


def _uv() -> str | None:
    if importlib.util.find_spec("uv") is not None:
        import uv

        return str(uv.find_uv_bin())
    return shutil.which("uv")
