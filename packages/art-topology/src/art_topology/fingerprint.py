"""A compiled topology as bytes, with a digest that is equal on every machine and in every process.

The digest is over JSON with sorted keys and without spaces, of everything but warnings and the digest itself.
So it does not depend on the order of keys in a file, on what was left out and what was spelled out, on
whether the topology travelled as JSON or MessagePack, or on Python's hash seed.
"""

from functools import cache

import msgspec

from art_topology.compiled import RuntimeTopology

__all__ = ["FingerprintError", "canonical_json", "fingerprint", "topology_from_json", "topology_to_json"]

_FORMAT = b"art-topology 1\n"


class FingerprintError(ValueError):
    """A compiled topology that is not what its fingerprint says, or that cannot be read."""


def canonical_json(topology: RuntimeTopology) -> bytes:
    """What the fingerprint of a topology is of: JSON (RFC 8259) in UTF-8.

    Keys are sorted, there are no spaces, and every default is written. ``warnings`` is empty and
    ``fingerprint`` is "".
    """
    bare = msgspec.structs.replace(topology, warnings=(), fingerprint="")
    return msgspec.json.encode(bare, order="sorted")


def fingerprint(topology: RuntimeTopology) -> str:
    """SHA-256 of a topology, in hex: of a line that names the format and :func:`canonical_json`."""
    import hashlib

    return hashlib.sha256(_FORMAT + canonical_json(topology)).hexdigest()


def topology_to_json(topology: RuntimeTopology) -> bytes:
    """The whole compiled topology as JSON, for a file or another program; indented by two spaces."""
    return msgspec.json.format(msgspec.json.encode(topology), indent=2) + b"\n"


def topology_from_json(data: bytes | str) -> RuntimeTopology:
    """Reads what :func:`topology_to_json` wrote, in whatever order and layout the keys of ``data`` are by
    now.

    Raises:
        FingerprintError: it is not JSON or no compiled topology, or was changed after it was compiled.
    """
    try:
        topology = _decoder().decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FingerprintError(
            f"this is no compiled topology: {error}; write one with topology_to_json(compile_topology(...))"
        ) from None
    found = fingerprint(topology)
    if found != topology.fingerprint:
        raise FingerprintError(
            f"the topology says its fingerprint is {topology.fingerprint or 'empty'}, but its contents have "
            f"{found}: it was changed after it was compiled; change the specification and compile it again"
        )
    return topology


@cache
def _decoder() -> msgspec.json.Decoder[RuntimeTopology]:
    return msgspec.json.Decoder(RuntimeTopology)
