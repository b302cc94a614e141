"""Which durable policies a run's folder holds, and whether they are all that were seen there.

What always holds: a generation that was once seen on disk is on record, in the line of the step that saw it
and in ``run.json`` when the run ends. So one that is on record and gone was lost, where one that is not on
record may never have become durable before a kill. Nothing here writes, and nothing needs torch.
"""

import hashlib
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from art.errors import ConfigError
from art.reporting.run_folder import GENERATIONS, RunDescription, StepLine, keep_names

DURABLE = "durable_version"
"""In a step's line: the newest policy that was seen on disk when the step ended."""

MANIFEST = "manifest.json"
SET_ASIDE = "damaged-"
"""In front of a generation's name: who put it there wants the run to go on without it."""

_GENERATION = re.compile(r"(?P<aside>damaged-)?step-(?P<version>[0-9]{8,})-[0-9a-f]{32}")
_UNRECORDED_LAG = 3
"""Versions that durability may lag behind in lines without a record: the snapshots of the default pool."""

_BLOCK_BYTES = 1 << 20


class Found(NamedTuple):
    """A generation: its policy version, and its folder."""

    version: int
    path: Path


class _FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    byte_count: int
    digest: str


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest that :mod:`art_trainer.durability` writes; that module needs torch."""

    format: int
    generation: str
    version: int
    run_id: str
    adapter_digest: str
    files: dict[str, _FileEntry]


def generations(folder: Path) -> list[Found]:
    """The generations in a run's folder by version; none where there is no such folder."""
    return _found(folder, aside=False)


def newest(folder: Path) -> Found | None:
    """The generation of the highest version."""
    found = generations(folder)
    return found[-1] if found else None


def newest_version(folder: Path) -> int:
    """The highest policy version that is durable in a run's folder, 0 without one."""
    found = newest(folder)
    return found.version if found is not None else 0


def seen_durable(folder: Path) -> int | None:
    """The newest version on disk, to be put on record: its name is durable when this returns."""
    found = newest(folder)
    if found is None:
        return None
    keep_names(folder / GENERATIONS)
    return found.version


def lost_generations(folder: Path, description: RunDescription, steps: Sequence[StepLine]) -> str | None:
    """What is wrong where policies that were on disk are there no more; None where none was lost.

    A generation whose name begins with :data:`SET_ASIDE` is not lost.
    """
    here = newest(folder)
    version = here.version if here is not None else -1
    recorded = [int(line[DURABLE]) for line in steps if DURABLE in line]
    if description.durable_version is not None:
        recorded.append(description.durable_version)
    last = int(steps[-1].get("policy_version", 0)) if steps else 0
    if recorded:
        were = max(recorded)
    else:
        were = last if description.finished else last - _UNRECORDED_LAG
        were = were if were > 0 else -1  # the base model's needs no generation
    aside = {found.version for found in _found(folder, aside=True)}
    missing = [number for number in range(version + 1, were + 1) if number not in aside]
    if not missing:
        return None
    told = f"{len(steps)} step{'' if len(steps) == 1 else 's'}, and policy v{were} was on disk"
    holds = "none" if here is None else f"none above v{version}"
    return (
        f"run.json and metrics.jsonl tell of {told}; {folder / GENERATIONS} holds {holds}. It was "
        "emptied, or left out when the run was copied"
    )


def check_generations(folder: Path, description: RunDescription, steps: Sequence[StepLine]) -> None:
    """Checks that nothing of what a resumption needs was lost or damaged, before anything is started.

    Raises:
        ConfigError: policies are missing that were on disk once, or the newest one is damaged.
    """
    lost = lost_generations(folder, description, steps)
    if lost is not None:
        raise ConfigError(
            f"{lost}. The run cannot go on without its policies, and was left as it is: bring its "
            f"{GENERATIONS}/ back, or start a new run"
        )
    found = newest(folder)
    problem = damage(found) if found is not None else None
    if found is None or problem is None:
        return
    before = generations(folder)[:-1]
    told = f"the newest policy of the run in {folder} is damaged: {problem}. Nothing was started or changed"
    if not before:
        raise ConfigError(f"{told}. It is the only one: bring it back, or start a new run")
    aside = found.path.with_name(SET_ASIDE + found.path.name)
    after = sum(int(line.get("policy_version", 0)) <= before[-1].version for line in steps)
    raise ConfigError(
        f"{told}. Bring the file back; or, to go on from step {after} and policy v{before[-1].version}, "
        f"which takes the later steps again, set it aside and resume once more:\n"
        f"    mv {shlex.quote(str(found.path))} {shlex.quote(str(aside))}"
    )


def damage(generation: Found) -> str | None:
    """What is wrong with the files of a generation; None where all are as its manifest says."""
    file = generation.path / MANIFEST
    try:
        manifest = msgspec.json.decode(file.read_bytes(), type=_Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        return f"{file} cannot be read ({error})"
    if (manifest.generation, manifest.version) != (generation.path.name, generation.version):
        return f"{file} is of {manifest.generation}, version {manifest.version}"
    for name, entry in manifest.files.items():
        path = generation.path / name
        try:
            size, digest = _measured(path)
        except OSError as error:
            return f"{path} cannot be read ({error})"
        if size != entry.byte_count:
            return f"{path} has {size:,} bytes of {entry.byte_count:,}"
        if digest != entry.digest:
            return f"{path} has other content than when it was written"
    return None


def _measured(path: Path) -> tuple[int, str]:
    digest, size = hashlib.blake2b(digest_size=32), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _found(folder: Path, *, aside: bool) -> list[Found]:
    return sorted(
        Found(int(match["version"]), path)
        for path, match in _named(folder / GENERATIONS)
        if bool(match["aside"]) == aside
    )


def _named(place: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    for path in place.glob("*step-*"):
        match = _GENERATION.fullmatch(path.name)
        if match is not None:
            yield path, match
