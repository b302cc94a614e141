"""Only what another process can import is referenced, and only the same source is run there."""

import functools
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from art.distributed import CallableError, InstalledAsyncCallable

MODULE = """
import functools

async def rollout(model, scenario, config):
    return scenario

def plain(model, scenario, config):
    return scenario

def make():
    async def nested(model, scenario, config):
        return scenario
    return nested

class Holder:
    async def method(self, model, scenario, config):
        return scenario

lambda_function = lambda model, scenario, config: None
nested_function = make()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "user_rollouts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "user_rollouts", raising=False)
    import importlib

    yield importlib.import_module("user_rollouts")
    sys.modules.pop("user_rollouts", None)


def resolve_elsewhere(reference: InstalledAsyncCallable, path: Path) -> subprocess.CompletedProcess[str]:
    """Resolves the reference in a new process whose path holds ``path``."""
    import msgspec

    code = textwrap.dedent(
        f"""
        import sys, msgspec
        from art.distributed import InstalledAsyncCallable
        sys.path.insert(0, {str(path)!r})
        data = bytes.fromhex({msgspec.msgpack.encode(reference).hex()!r})
        print(msgspec.msgpack.decode(data, type=InstalledAsyncCallable).resolve().__name__)
        """
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_reference_resolves_in_another_process(module, tmp_path: Path) -> None:
    reference = InstalledAsyncCallable.from_callable(module.rollout)
    assert str(reference) == "user_rollouts:rollout"
    assert reference.refers_to(module.rollout)
    assert not reference.refers_to(module.plain)
    result = resolve_elsewhere(reference, tmp_path)
    assert result.stdout.strip() == "rollout", result.stderr


def test_another_source_is_refused(module, tmp_path: Path) -> None:
    reference = InstalledAsyncCallable.from_callable(module.rollout)
    (tmp_path / "user_rollouts.py").write_text(MODULE + "# edited\n")
    result = resolve_elsewhere(reference, tmp_path)
    assert result.returncode != 0
    assert "user_rollouts:rollout is another source here" in result.stderr
    assert "Synchronize the source" in result.stderr


def test_a_module_that_is_not_there_is_named(module, tmp_path: Path) -> None:
    import msgspec

    reference = msgspec.structs.replace(
        InstalledAsyncCallable.from_callable(module.rollout), module="missing_rollouts", python_path=None
    )
    result = resolve_elsewhere(reference, tmp_path / "nowhere")
    assert "missing_rollouts:rollout cannot be imported in this worker" in result.stderr


@pytest.mark.parametrize(
    ("pick", "reason"),
    [
        (lambda module: module.lambda_function, "a lambda"),
        (lambda module: module.nested_function, "defined inside a function"),
        (lambda module: module.plain, "is not an async function"),
        (lambda module: module.Holder.method, "is a method"),
        (lambda module: module.Holder().method, "not a function"),
        (lambda module: functools.partial(module.rollout, None), "not a function"),
        (lambda module: module.Holder, "not a function"),
    ],
)
def test_what_cannot_travel_is_refused_with_the_reason(module, pick, reason: str) -> None:
    with pytest.raises(CallableError, match=reason) as caught:
        InstalledAsyncCallable.from_callable(pick(module))
    assert "top-level `async def`" in str(caught.value)


def test_a_function_that_was_replaced_is_refused(module, monkeypatch: pytest.MonkeyPatch) -> None:
    original = module.rollout
    monkeypatch.setattr(module, "rollout", module.plain)
    with pytest.raises(CallableError, match="decorated or replaced"):
        InstalledAsyncCallable.from_callable(original)
