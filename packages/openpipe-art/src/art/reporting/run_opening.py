"""A run's folder from what a program says about the run: a new one, or one that goes on."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import art
from art.errors import ConfigError
from art.reporting.run_folder import RunDescription
from art.reporting.run_writer import RunWriter

_ABOUT_THE_FOLDER = frozenset({"run_dir", "resume"})


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What a program says; see :class:`art.reporting.RunReport`."""

    name: str
    folder: Path | None
    settings: msgspec.Struct | None
    resume: bool
    resume_command: str | None


async def opened(opening: Opening, waits: Callable[[], None]) -> RunWriter:
    """Takes the folder.

    Args:
        opening: the run.
        waits: called if what is left of a killed run has to be waited for.

    Raises:
        RunFinishedError: the run is to go on and came to its end already.
        ConfigError: the folder is in use, cannot be written, or is no run that can go on.
    """
    settings = _plain(opening.settings)
    if opening.resume:
        if opening.folder is None:
            raise ConfigError("a run is resumed in its own folder; name it")
        return await RunWriter.resumed(
            opening.folder.resolve(),
            settings,
            waits,
            name=opening.name,
            resume_command=opening.resume_command or "",
        )
    description = RunDescription(
        name=opening.name,
        art_version=art.__version__,
        model="",
        model_folder="",
        started_unix_s=time.time(),
        settings=settings,
        resume_command=opening.resume_command or "",
    )
    return RunWriter.fresh((opening.folder or _default_folder(opening.name)).resolve(), description)


def _default_folder(name: str) -> Path:
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _plain(settings: msgspec.Struct | None) -> dict[str, Any]:
    if settings is None:
        return {}
    plain: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=str)
    return {name: value for name, value in plain.items() if name not in _ABOUT_THE_FOLDER}
