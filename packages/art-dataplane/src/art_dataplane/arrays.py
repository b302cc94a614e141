"""NumPy arrays inside msgspec messages.

Every message of this package is encoded and decoded here, so that an array is written the same way
everywhere: as the triple ``(dtype string, shape, bytes)``. MessagePack carries the bytes raw, JSON as base64.
"""

from typing import Any

import msgspec
import numpy as np


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"cannot encode {type(value).__name__}")


class _ArrayTriple(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def _decode_array(kind: type, value: Any) -> Any:
    if kind is not np.ndarray:
        raise NotImplementedError(f"cannot decode {kind.__name__}")
    triple = msgspec.convert(value, _ArrayTriple)
    dtype = np.dtype(triple.dtype)
    if dtype.hasobject:
        raise ValueError(f"dtype {triple.dtype!r} holds objects; only plain numbers are carried")
    return np.frombuffer(triple.data, dtype=dtype).reshape(triple.shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_json_encoder = msgspec.json.Encoder(enc_hook=_encode_array)


def encode(message: Any) -> bytes:
    """Encodes ``message``, a struct of this package or a list of them, as MessagePack.

    Raises:
        NotImplementedError: it holds something that is neither data nor an array.
    """
    return _encoder.encode(message)


def decode[T](data: bytes | memoryview, kind: type[T]) -> T:
    """Decodes MessagePack into ``kind``; arrays are read-only views of ``data``.

    Raises:
        msgspec.ValidationError: ``data`` is MessagePack of something else than ``kind``, or an array holds
            objects.
        msgspec.DecodeError: it is no MessagePack.
    """
    return msgspec.msgpack.decode(data, type=kind, dec_hook=_decode_array)


def encode_json(message: Any) -> bytes:
    """Encodes ``message``, a struct of this package or a list of them, as JSON; array bytes become base64.

    Raises:
        NotImplementedError: it holds something that is neither data nor an array.
    """
    return _json_encoder.encode(message)


def decode_json[T](data: bytes | str, kind: type[T]) -> T:
    """Decodes into ``kind`` what :func:`encode_json` wrote.

    Raises:
        msgspec.ValidationError: ``data`` is JSON of something else than ``kind``.
        msgspec.DecodeError: it is no JSON.
    """
    return msgspec.json.decode(data, type=kind, dec_hook=_decode_array)
