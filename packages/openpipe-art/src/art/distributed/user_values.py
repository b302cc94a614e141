"""Scenarios, configurations and results of user code, as bytes.

They are values of the user's own types, so they are pickled by the standard library: data only, every class
and function by import path. A class defined in the script that was started travels under the name by which a
worker imports that script. Workers of one run trust their controller; nobody else can reach them.
"""

import io
import pickle
import sys
from pathlib import Path
from typing import Any

from art.distributed.errors import CallableError


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if (
            isinstance(value, type)
            and value.__module__ == "__main__"
            and "<locals>" not in value.__qualname__
        ):
            return _main_class, (script_module(), value.__qualname__)
        return NotImplemented


def _main_class(module: str, qualname: str) -> type:
    """The class of a script: of ``__main__`` where the script was started, of the imported module
    elsewhere."""
    import importlib

    home: Any = sys.modules["__main__"] if script_module() == module else importlib.import_module(module)
    for part in qualname.split("."):
        home = getattr(home, part)
    assert isinstance(home, type)
    return home


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == script_module():
            module = "__main__"
        return super().find_class(module, name)


def script_module() -> str | None:
    """The import name of the script that this process was started with, if it was started with one."""
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None or getattr(main, "__file__", None) is None:
        return None
    return Path(str(main.__file__)).stem


def pack(value: Any, what: str) -> bytes:
    """Pickles a value.

    Raises:
        CallableError: it holds something that is not data: a lambda, a nested function or class, a lock, a
            client.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=5).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise CallableError(
            f"{what} of type {type(value).__name__} cannot be sent to another process: {error}. Use plain "
            "data, dataclasses, msgspec structs or pydantic models of top-level classes"
        ) from error
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """Reads what :func:`pack` wrote in another process of the same run."""
    return _Unpickler(io.BytesIO(data)).load()
