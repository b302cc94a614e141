"""The weight files of a model folder, by their headers: names, shapes and dtypes, without any number.

A safetensors file begins with 8 bytes that say how long its header is, then the header in JSON, then the
numbers without a gap. What always holds: what :func:`read_weights` returns is whole, each tensor's bytes are
there, and an index names exactly what its files hold.
"""

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from art.errors import ConfigError

INDEX = "model.safetensors.index.json"
_LONGEST_HEADER = 100 << 20
_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of a number of the dtypes that can be trained."""
_SHOWN = 4


class StoredTensor(msgspec.Struct, frozen=True):
    """One tensor of a weight file.

    Args:
        shape: as in the header.
        dtype: by safetensors' name, for example ``F32`` or ``BF16``.
        file: that holds it.
    """

    shape: tuple[int, ...]
    dtype: str
    file: Path

    @property
    def count(self) -> int:
        """Its numbers."""
        return math.prod(self.shape)


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights: those that the index names, or without one all ``*.safetensors``.

    Raises:
        ConfigError: the index cannot be read, or names a file that is not there.
    """
    index = _index(folder)
    if index is None:
        return sorted(folder.glob("*.safetensors"))
    names = sorted(set(index.values()))
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise ConfigError(
            f"{folder / INDEX} names {len(names)} files, of which {len(absent)} are not there: "
            f"{listed(absent)}"
        )
    return [folder / name for name in names]


def read_weights(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder's weight files by name.

    Raises:
        ConfigError: a file is no safetensors file or not whole, two hold one name, or the index disagrees.
    """
    found: dict[str, StoredTensor] = {}
    for file in weight_files(folder):
        for name, tensor in _header(file).items():
            if name in found:
                raise ConfigError(f"{name} is in two files: {found[name].file.name} and {file.name}")
            found[name] = tensor
    for name, where in (_index(folder) or {}).items():
        if name not in found or found[name].file.name != Path(where).name:
            raise ConfigError(f"{folder / INDEX} says that {name} is in {where}, which does not hold it")
    return found


def listed(names: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _index(folder: Path) -> Mapping[str, str] | None:
    path = folder / INDEX
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Index).weight_map
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, which must have as many bytes as its header accounts for."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _LONGEST_HEADER:
                raise ValueError(f"its header says it has {length} bytes")
            header = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
            byte_count = file.seek(0, 2)
        header.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in header.items()}
    except (OSError, ValueError, struct.error) as error:
        raise ConfigError(f"{path} is no safetensors file that can be read: {_reason(error)}") from error
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, stop = entry.data_offsets
        width = _WIDTHS.get(entry.dtype)
        wanted = stop - begin if width is None else width * math.prod(entry.shape)
        if begin != end or stop - begin != wanted:
            raise ConfigError(
                f"{path} is damaged: {name}, {entry.dtype} {list(entry.shape)}, takes {wanted} bytes from "
                f"{end} on, and its header says {begin} to {stop}"
            )
        end = stop
    whole = 8 + length + end
    if byte_count != whole:
        how = "cut short" if byte_count < whole else "too long"
        raise ConfigError(f"{path} is {how}: {byte_count} bytes, its header asks for {whole}")
    return {name: StoredTensor(entry.shape, entry.dtype, path) for name, entry in entries.items()}


def trainable_dtype(dtype: str) -> bool:
    """Whether tensors of this dtype are numbers as they are, not codes of a quantized model."""
    return dtype in _WIDTHS


def _reason(error: Exception) -> Any:
    return "it is too short to have a header" if isinstance(error, struct.error) else error
