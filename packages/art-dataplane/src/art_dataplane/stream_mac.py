"""What authenticates the bytes of a stream: one tag per chunk, and one seal over all tags.

Both algorithms are keyed with a key that no other read has. ``aes-gmac`` (AES-256-GCM over no plaintext,
NIST SP 800-38D) is ten times as fast where the processor has AES and carry-less multiplication, and needs the
package ``cryptography``; ``hmac-sha256`` (RFC 2104) needs nothing.
"""

import hmac
import importlib.util
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Literal

from art_dataplane.errors import TransportError

MacName = Literal["aes-gmac", "hmac-sha256"]
"""An algorithm by name."""

MAC_NAMES: tuple[MacName, ...] = ("aes-gmac", "hmac-sha256")
"""All of them, the preferred one first."""

CHUNK_BYTES = 1 << 20
"""Bytes under one tag; part of the protocol."""

SEAL_BYTES = 32

_ChunkTag = Callable[[int, memoryview], bytes]


def choose_mac(choice: str) -> MacName:
    """The algorithm of new offers.

    Args:
        choice: a name, or ``auto``: ``aes-gmac`` when the package ``cryptography`` is installed,
            ``hmac-sha256`` otherwise.

    Raises:
        TransportError: there is no such algorithm, or its package is not installed.
    """
    if choice == "auto":
        return "aes-gmac" if _has_cryptography() else "hmac-sha256"
    return require_mac(choice)


def require_mac(choice: str) -> MacName:
    """The algorithm of this name.

    Raises:
        TransportError: there is no such algorithm, or its package is not installed.
    """
    for name in MAC_NAMES:
        if name == choice:
            if name == "aes-gmac" and not _has_cryptography():
                raise TransportError(
                    "aes-gmac needs the package cryptography, which is not installed here; install "
                    "art-dataplane[stream], or offer with mac='hmac-sha256'"
                )
            return name
    raise TransportError(f"there is no MAC {choice!r}; auto or one of {', '.join(MAC_NAMES)}")


class ChunkSealer:
    """Tags chunks one after the other and seals the tags; one for each read at each end.

    Args:
        name: the algorithm.
        key: 32 bytes that key the chunks of this read alone.
        seal_key: 32 bytes that key its seal.
        pool: where tags are made that are slow to make, so that they do not wait for the network nor it for
            them; owned by the caller.
    """

    def __init__(self, name: MacName, key: bytes, seal_key: bytes, pool: ThreadPoolExecutor) -> None:
        self._tag = _aes_gmac(key) if name == "aes-gmac" else _hmac_sha256(key)
        self._seal_key = seal_key
        self._pool = pool if name == "hmac-sha256" else None
        self._tags: list[Future[bytes] | bytes] = []

    def add(self, chunk: memoryview) -> None:
        """Takes the next chunk, which does not change until :meth:`finish`.

        Args:
            chunk: its bytes; released when they were read.
        """
        index = len(self._tags)
        if self._pool is None:
            self._tags.append(self._make(index, chunk))
        else:
            self._tags.append(self._pool.submit(self._make, index, chunk))

    def seal(self) -> bytes:
        """The seal over all chunks so far, of :data:`SEAL_BYTES` bytes."""
        tags = (tag.result() if isinstance(tag, Future) else tag for tag in self._tags)
        return hmac.digest(self._seal_key, b"".join(tags), "sha256")

    def finish(self) -> None:
        """Waits until no chunk is read any more."""
        wait([tag for tag in self._tags if isinstance(tag, Future)])

    def _make(self, index: int, chunk: memoryview) -> bytes:
        with chunk:
            return self._tag(index, chunk)


def _has_cryptography() -> bool:
    return importlib.util.find_spec("cryptography") is not None


def _hmac_sha256(key: bytes) -> _ChunkTag:
    def tag(index: int, chunk: memoryview) -> bytes:
        return hmac.digest(hmac.digest(key, index.to_bytes(12), "sha256"), chunk, "sha256")

    return tag


def _aes_gmac(key: bytes) -> _ChunkTag:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher = AESGCM(key)

    def tag(index: int, chunk: memoryview) -> bytes:
        return cipher.encrypt(index.to_bytes(12), b"", chunk)  # the index is a nonce: once under this key

    return tag
