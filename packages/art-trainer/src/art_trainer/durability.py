"""Durable generations: adapter and optimizer of one version, written aside, committed by one rename.

What always holds:

- A folder named ``step-00000012-<32 hex>`` is complete: every file in it was fsynced before the rename, and
  the rename before the receipt. The newest generation is the one with the highest version; there is no
  pointer file.
- Files are written in ``.stage-NAME``, a sibling. One process at a time owns the parent folder, by a lock
  that the kernel drops when the process dies, so a stage found under the lock is a dead process's and is
  removed.
- ``manifest.json`` has the size and digest of every other file, and reading checks both. A damaged
  generation is an error that names the file; nothing falls back to an older one.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from art_dataplane import Receipt, SnapshotLease, read_tensors
from art_trainer.errors import DurabilityError, ResumeError
from art_trainer.snapshots import PoolLease, TrainerSnapshot

ADAPTER_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
OPTIMIZER_FILE = "optimizer.safetensors"
MANIFEST_FILE = "manifest.json"

_GENERATION = re.compile(r"step-(?P<version>[0-9]{8,})-[0-9a-f]{32}")
_STAGE_PREFIX = ".stage-"
_FORMAT = 1


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a generation: its size and BLAKE2b-256 in hex."""

    byte_count: int
    digest: str


class GenerationManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``manifest.json``; ``adapter_digest`` is the one of the snapshot's manifest."""

    format: int
    generation: str
    version: int
    run_id: str
    adapter_digest: str
    files: dict[str, FileEntry]


class Generation(msgspec.Struct, frozen=True):
    """A complete generation on disk."""

    name: str
    version: int
    path: str


@dataclass(frozen=True)
class GenerationState:
    """What a generation holds; tensors under PEFT's names, optimizer as in ``TrainerSnapshot.optimizer``."""

    generation: Generation
    adapter: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    peft_config: str


def new_generation_name(version: int) -> str:
    """A name that no other generation has."""
    return f"step-{version:08d}-{uuid.uuid4().hex}"


def list_generations(folder: str | Path) -> list[Generation]:
    """The complete generations of a folder by version, whoever wrote them; empty when it does not exist."""
    root = Path(folder)
    if not root.is_dir():
        return []
    found = []
    for entry in root.iterdir():
        match = _GENERATION.fullmatch(entry.name)
        if match is not None and entry.is_dir():
            found.append(Generation(entry.name, int(match["version"]), str(entry)))
    return sorted(found, key=lambda generation: (generation.version, generation.name))


class GenerationStore:
    """Owns one folder of generations for as long as it is open; nobody else may write there."""

    def __init__(self, folder: str | Path, run_id: str) -> None:
        """Creates the folder, takes its lock and removes the stages of dead processes (:attr:`swept`).

        Raises:
            DurabilityError: another process has the folder open.
        """
        self._root = Path(folder)
        self._run_id = run_id
        self._root.mkdir(parents=True, exist_ok=True)
        self._lock: int | None = os.open(self._root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            self._lock = None
            raise DurabilityError(
                f"{self._root} is open in another process; end it or give this run a folder of its own"
            ) from error
        self.swept: tuple[str, ...] = self._sweep()

    def generations(self) -> list[Generation]:
        """The complete generations by version."""
        return list_generations(self._root)

    def find(self, name: str) -> Generation | None:
        """``"latest"`` is the one of the highest version, None when there are none; else the one so named.

        Raises:
            ResumeError: no generation has that name, or two have the highest version.
        """
        generations = self.generations()
        if name == "latest":
            newest = [g for g in generations if g.version == generations[-1].version]
            if len(newest) > 1:
                raise ResumeError(
                    f"{self._root} has {len(newest)} generations of version {newest[0].version}: "
                    f"{', '.join(g.name for g in newest)}; name the one to resume from"
                )
            return newest[0] if newest else None
        for generation in generations:
            if generation.name == name:
                return generation
        known = ", ".join(g.name for g in generations[-3:]) or "none"
        raise ResumeError(f"{self._root} has no generation {name!r}; its newest are {known}")

    def write(self, snapshot: TrainerSnapshot) -> Generation:
        """Writes a snapshot as the generation that its manifest names; returns when it is durable.

        Raises:
            DurabilityError: the snapshot names no generation, the store is closed, or the disk refuses.
        """
        name = snapshot.manifest.generation
        if name is None or _GENERATION.fullmatch(name) is None:
            raise DurabilityError(f"version {snapshot.manifest.version} names the generation {name!r}")
        if self._lock is None:
            raise DurabilityError(f"{self._root} is closed; {name} was not written")
        stage, final = self._root / (_STAGE_PREFIX + name), self._root / name
        try:
            stage.mkdir(mode=0o755)
            self._write_stage(stage, name, snapshot)
            os.rename(stage, final)
            _fsync_folder(self._root)
        except OSError as error:
            shutil.rmtree(stage, ignore_errors=True)
            raise DurabilityError(f"{name} could not be written to {self._root}: {error}") from error
        return Generation(name, snapshot.manifest.version, str(final))

    def read(self, generation: Generation) -> GenerationState:
        """Reads and verifies a generation.

        Raises:
            ResumeError: a file is missing, damaged or of another format.
        """
        path = Path(generation.path)
        manifest = _read_manifest(path)
        if manifest.generation != generation.name or manifest.version != generation.version:
            raise ResumeError(f"{path} says that it is {manifest.generation}, version {manifest.version}")
        content = {name: _read_verified(path / name, entry) for name, entry in manifest.files.items()}
        missing = {ADAPTER_FILE, CONFIG_FILE, OPTIMIZER_FILE} - set(content)
        if missing:
            raise ResumeError(f"{path / MANIFEST_FILE} does not list {', '.join(sorted(missing))}")
        try:
            adapter, optimizer = (
                load_safetensors(content[ADAPTER_FILE]),
                load_safetensors(content[OPTIMIZER_FILE]),
            )
        except SafetensorError as error:
            raise ResumeError(f"{path} holds a file that is not safetensors: {error}") from error
        return GenerationState(generation, adapter, optimizer, content[CONFIG_FILE].decode())

    def close(self) -> None:
        """Gives the folder's lock back; a second call does nothing."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _write_stage(self, stage: Path, name: str, snapshot: TrainerSnapshot) -> None:
        with read_tensors(snapshot.manifest) as mapped:
            adapter = {
                key: torch.from_numpy(np.frombuffer(tensor.data, np.float32).reshape(tensor.shape).copy())
                for key, tensor in mapped.items()
            }
        content = {
            ADAPTER_FILE: save_safetensors(adapter, metadata={"format": "pt"}),
            CONFIG_FILE: snapshot.manifest.peft_config.encode(),
            OPTIMIZER_FILE: save_safetensors(dict(snapshot.optimizer)),
        }
        files = {key: FileEntry(len(data), _digest(data)) for key, data in content.items()}
        manifest = GenerationManifest(
            _FORMAT, name, snapshot.manifest.version, self._run_id, snapshot.manifest.digest, files
        )
        content[MANIFEST_FILE] = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        for key, data in content.items():
            _write_durably(stage / key, data)
        _fsync_folder(stage)

    def _sweep(self) -> tuple[str, ...]:
        stages = sorted(entry for entry in self._root.iterdir() if entry.name.startswith(_STAGE_PREFIX))
        for stage in stages:
            shutil.rmtree(stage)
        return tuple(stage.name for stage in stages)


class DurabilitySink:
    """The snapshot sink that writes generations, one at a time, in a thread of its own."""

    def __init__(self, store: GenerationStore) -> None:
        """Borrows the store; its owner closes it after :meth:`close`."""
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="art-durability")

    async def submit(self, lease: SnapshotLease) -> Receipt:
        """Writes the snapshot; releases the lease when the files are closed, also if the wait is cancelled.

        Raises:
            DurabilityError: the lease is not one of a trainer's pool, or the write failed.
        """
        if not isinstance(lease, PoolLease):
            lease.release()
            raise DurabilityError(
                f"a {type(lease).__name__} has no optimizer state; submit leases of the pool"
            )
        started = time.monotonic()
        written = self._thread.submit(self._store.write, lease.snapshot)
        written.add_done_callback(lambda _: lease.release())
        generation = await asyncio.wrap_future(written)
        return Receipt("durability", generation.version, generation.path, time.monotonic() - started)

    def close(self) -> None:
        """Waits for the write in progress and drops queued ones."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def _write_durably(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _fsync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_manifest(path: Path) -> GenerationManifest:
    file = path / MANIFEST_FILE
    try:
        manifest = msgspec.json.decode(file.read_bytes(), type=GenerationManifest)
    except FileNotFoundError as error:
        raise ResumeError(
            f"{file} does not exist; {path.name} is not a generation of this package"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ResumeError(f"{file} cannot be read: {error}") from error
    if manifest.format != _FORMAT:
        raise ResumeError(f"{file} has format {manifest.format}; this version reads {_FORMAT}")
    return manifest


def _read_verified(path: Path, entry: FileEntry) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ResumeError(f"{path} is missing though the manifest lists it") from error
    if len(data) != entry.byte_count or _digest(data) != entry.digest:
        raise ResumeError(
            f"{path} is damaged: it has {len(data)} bytes of {entry.byte_count}, or another digest than the "
            "manifest says; resume from another generation"
        )
    return data
