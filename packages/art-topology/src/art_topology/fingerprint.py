"""A digest of what was compiled, equal on every machine and in every process."""

import msgspec

from art_topology.compiled import RuntimeTopology

_FORMAT = b"art-topology 1\n"


def fingerprint(topology: RuntimeTopology) -> str:
    """SHA-256, in hex, of the canonical JSON of ``topology`` without its warnings and fingerprint."""
    import hashlib

    bare = msgspec.structs.replace(topology, warnings=(), fingerprint="")
    return hashlib.sha256(_FORMAT + msgspec.json.encode(bare, order="sorted")).hexdigest()
