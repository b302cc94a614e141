"""The program that ``art-monarch`` runs: ``FILE_OR_MODULE:FUNCTION``, a top-level async function of one
argument."""

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from art.checks.results import State
from art.checks.shadows import shadows_check
from art.distributed.errors import ProgramError
from art.errors import SettingError, TrajectoryError
from art.user_code import is_users

if TYPE_CHECKING:
    from art.distributed.launch import ArtLaunchContext

type Main = Callable[["ArtLaunchContext"], Awaitable[None]]


class Program(msgspec.Struct, frozen=True):
    """A checked reference.

    Args:
        module: to be imported.
        function: its name in the module.
        folder: the script's folder, to be added to the Python path here and in every worker; ``None`` for a
            module that is importable already.
    """

    module: str
    function: str
    folder: str | None = None

    def load(self) -> Main:
        """Imports the function.

        Raises:
            ProgramError: the import fails, or it is not a top-level async function that takes the launch
                context.
        """
        if self.folder is not None:
            self._check_name(self.folder)
            shadows = shadows_check([Path(self.folder)])
            if shadows.state is State.FAILURE:
                raise ProgramError(f"{self.module} cannot be imported: {shadows.line()}")
            if self.folder not in sys.path:
                sys.path.insert(0, self.folder)
        try:
            module = importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            missing = error.name == self.module or (error.name and self.module.startswith(f"{error.name}."))
            raise ProgramError(
                f"there is no module {self.module!r}; give a script as path/to/script.py:{self.function}, or "
                "an installed module"
                if missing
                else f"{self.module} cannot be imported: {error}"
            ) from error
        except Exception as error:
            raise ProgramError(f"{self.module} cannot be imported: {_with_place(error)}") from error
        function: Main | None = getattr(module, self.function, None)
        if function is None:
            raise ProgramError(f"{self.module} ({module.__file__}) has no function {self.function!r}")
        if not inspect.iscoroutinefunction(function):
            raise ProgramError(
                f"{self.module}:{self.function} is not an async function; it must be "
                f"`async def {self.function}(launch: ArtLaunchContext) -> None`"
            )
        try:
            inspect.signature(function).bind(None)
        except TypeError as error:
            raise ProgramError(
                f"{self.module}:{self.function} must take one argument, the ArtLaunchContext: {error}"
            ) from error
        return function

    def _check_name(self, folder: str) -> None:
        """A script must not take the name of a module that this program, or ART itself, may import."""
        script = Path(folder, f"{self.module}.py")
        spec = importlib.util.find_spec(self.module)
        origin = spec.origin if spec is not None else None
        if self.module in sys.stdlib_module_names or (origin and Path(origin).resolve() != script):
            raise ProgramError(
                f"{script} cannot be imported as {self.module!r}: that name belongs to {origin}. "
                "Rename the script"
            )


def parse_program(text: str) -> Program:
    """Reads a reference; does not import anything.

    Raises:
        ProgramError: it is malformed, or the script is not there.
    """
    place, colon, function = text.rpartition(":")
    if not colon or not place or not function.isidentifier():
        raise ProgramError(
            f"{text!r} is not FILE_OR_MODULE:FUNCTION; write for example train.py:main or "
            "my_package.train:main"
        )
    if not (place.endswith(".py") or "/" in place):
        if not all(part.isidentifier() for part in place.split(".")):
            raise ProgramError(f"{place!r} in {text!r} is neither a script (.py) nor a module name")
        return Program(place, function)
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise ProgramError(f"there is no script {path}")
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise ProgramError(
            f"{path.name} cannot be imported: its name must be a Python name with the suffix .py"
        )
    return Program(path.stem, function, str(path.parent))


def absolute_reference(text: str) -> str:
    """A reference that :func:`parse_program` reads, such that it means the same in any folder.

    A script keeps the name that it was given by, also where that is a link.
    """
    place, _, function = text.rpartition(":")
    if not (place.endswith(".py") or "/" in place):
        return text
    return f"{os.path.abspath(Path(place).expanduser())}:{function}"


def _with_place(error: BaseException) -> str:
    """The error, and the last of the user's own lines that it passed, or the last line of all."""
    frames = [] if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    shown = [frame for frame in frames if is_users(frame.filename)] or frames
    told = isinstance(error, SettingError | TrajectoryError)  # they name the line themselves
    place = f" ({shown[-1].filename}:{shown[-1].lineno})" if shown and not told else ""
    return f"{type(error).__name__}: {error}{place}"
