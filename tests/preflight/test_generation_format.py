"""Generations that the trainer writes are read before a process starts, without torch."""

import hashlib
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from art.reporting.generations import damage, newest, newest_version
from art_trainer.durability import FileEntry, GenerationManifest, GenerationStore, new_generation_name


def test_a_generation_as_the_trainer_writes_it_is_whole(tmp_path: Path) -> None:
    """The format is the trainer's own: written by it, read here."""
    name = new_generation_name(3)
    folder = tmp_path / "generations" / name
    folder.mkdir(parents=True)
    files = {}
    for file in ("adapter_model.safetensors", "optimizer.safetensors"):
        save_file({"w": torch.arange(4096, dtype=torch.float32)}, folder / file)
        data = (folder / file).read_bytes()
        files[file] = FileEntry(len(data), hashlib.blake2b(data, digest_size=32).hexdigest())
    (folder / "adapter_config.json").write_bytes(b"{}")
    files["adapter_config.json"] = FileEntry(2, hashlib.blake2b(b"{}", digest_size=32).hexdigest())
    (folder / "manifest.json").write_bytes(
        msgspec.json.encode(GenerationManifest(1, name, 3, "r", "", files))
    )
    store = GenerationStore(tmp_path / "generations", "r")
    try:
        read = store.find("latest")
        assert read is not None
        store.read(read)
    finally:
        store.close()
    found = newest(tmp_path)
    assert found is not None
    assert (newest_version(tmp_path), damage(found)) == (3, None)
    optimizer = folder / "optimizer.safetensors"
    optimizer.write_bytes(optimizer.read_bytes()[:-1] + b"?")
    assert "optimizer.safetensors has other content" in str(damage(found))
