"""User code by import path: an async function that every worker imports itself and checks against its source.

Nothing is ever shipped as code. A worker accepts a reference only when the file it imports has the digest
that the controller's has.
"""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from art.distributed.errors import CallableError
from art.user_code import place

type AsyncFunction = Callable[..., Awaitable[Any]]

_RULE = (
    "Only a top-level `async def` of an importable module can run in another process: ART sends its import "
    "path"
)


class InstalledAsyncCallable(msgspec.Struct, frozen=True):
    """A verified reference to a top-level async function; made by :meth:`from_callable`.

    Args:
        module: where a worker imports it from.
        name: the function's name in the module.
        source_digest: BLAKE2b-256 (hex) of the module's source file.
        source_path: the file as the controller has it, for messages.
        python_path: the script's folder when the function came from a script run by its path, to be added to
            the worker's import path.
    """

    module: str
    name: str
    source_digest: str
    source_path: str
    python_path: str | None = None

    @classmethod
    def from_callable(cls, function: AsyncFunction) -> "InstalledAsyncCallable":
        """References ``function``.

        Raises:
            CallableError: it is not a top-level async function that another process could import.
        """
        shown = getattr(function, "__qualname__", repr(function))
        if not inspect.isfunction(function):
            raise CallableError(f"{shown} is {type(function).__name__}, not a function. {_RULE}")
        if function.__name__ == "<lambda>":
            raise CallableError(f"a lambda of {function.__module__} was given. {_RULE}")
        if "<locals>" in shown:
            raise CallableError(
                f"{shown} is defined inside a function and may close over its variables. {_RULE}; pass what "
                "varies as scenario or config"
            )
        if "." in shown:
            raise CallableError(f"{shown} is a method. {_RULE}")
        if not inspect.iscoroutinefunction(function):
            code = function.__code__
            raise CallableError(
                f"{shown} is not an async function: write `async def {shown}(...)`, and `await` before what "
                f"it waits for ({place(code.co_filename, code.co_firstlineno)}). {_RULE}"
            )
        module = sys.modules.get(function.__module__)
        if module is None or getattr(module, function.__name__, None) is not function:
            raise CallableError(
                f"{function.__module__}.{function.__name__} is not the function that was given (decorated or "
                f"replaced after its definition). {_RULE}"
            )
        path = _source_file(module)
        name, python_path = _import_name(module, path)
        return cls(name, function.__name__, source_digest(path), str(path), python_path)

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"

    def resolve(self) -> AsyncFunction:
        """Imports the function in this process and verifies its source.

        Raises:
            CallableError: it cannot be imported here, or the file here is another one.
        """
        if self.python_path is not None and self.python_path not in sys.path:
            sys.path.insert(0, self.python_path)
        try:
            module = importlib.import_module(self.module)
        except ImportError as error:
            raise CallableError(
                f"{self} cannot be imported in this worker: {error}. The module must be installed, or its "
                f"folder be on the Python path, on every host (the controller has it at {self.source_path})"
            ) from error
        path = _source_file(module)
        digest = source_digest(path)
        if digest != self.source_digest:
            raise CallableError(
                f"{self} is another source here: {path} has digest {digest[:12]}, the controller's "
                f"{self.source_path} has {self.source_digest[:12]}. Synchronize the source, or restart if it "
                "was edited after the start"
            )
        function = getattr(module, self.name, None)
        if not inspect.iscoroutinefunction(function):
            raise CallableError(f"{self} is not an async function in {path}")
        return function

    def refers_to(self, function: AsyncFunction) -> bool:
        """Whether ``function`` of this process is the one referenced."""
        name = getattr(function, "__name__", None)
        module = sys.modules.get(getattr(function, "__module__", "") or "")
        if name != self.name or module is None or getattr(module, self.name, None) is not function:
            return False
        if module.__name__ == self.module:
            return True
        return module.__name__ == "__main__" and str(_source_file(module)) == self.source_path


def source_digest(path: Path) -> str:
    """BLAKE2b-256 of a source file, hex."""
    return hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()


def _source_file(module: ModuleType) -> Path:
    name = getattr(module, "__file__", None)
    if name is None:
        raise CallableError(
            f"module {module.__name__} has no source file (an interactive session or a notebook). {_RULE}"
        )
    path = Path(name).resolve()
    if path.suffix != ".py" or not path.is_file():
        raise CallableError(f"the source of module {module.__name__} is not readable at {path}. {_RULE}")
    return path


def _import_name(module: ModuleType, path: Path) -> tuple[str, str | None]:
    """The name under which a worker imports the module, and the folder to add to its path, if any."""
    if module.__name__ != "__main__":
        script_folder = str(path.parent)
        top_level = "." not in module.__name__ and not hasattr(module, "__path__")
        return module.__name__, script_folder if top_level and script_folder in sys.path else None
    spec = getattr(module, "__spec__", None)
    if spec is not None:
        return str(spec.name), None
    if not path.stem.isidentifier():
        raise CallableError(
            f"{path} cannot be imported: {path.stem!r} is not a Python name; rename the file. {_RULE}"
        )
    return path.stem, str(path.parent)
