"""The process-wide configuration of the Megatron runtime: set once, before the backend takes it.

Invariant: after :func:`get_megatron_runtime_config` gave a configuration out, it never changes in this
    process.
"""

import threading

import msgspec

from art.errors import ConfigError
from art_topology import MegatronTopologyConfig


class MegatronRuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What :class:`~art.backend.MegatronBackend` runs with.

    Args:
        topology: how ranks are cut (tp, cp, ep, etp, pp, vpp); the default is one rank.
        packed_sequence_length: physical tokens per packed row, at least 1; a prompt and its answer must fit.
        snapshot_capacity: adapters that publication and durability may lag behind, at least 1.

    Raises:
        ValueError: a number is below 1.
    """

    topology: MegatronTopologyConfig
    packed_sequence_length: int = 8192
    snapshot_capacity: int = 2

    def __post_init__(self) -> None:
        if self.packed_sequence_length < 1:
            raise ValueError(
                f"packed_sequence_length is {self.packed_sequence_length}; it must be at least 1 token"
            )
        if self.snapshot_capacity < 1:
            raise ValueError(f"snapshot_capacity is {self.snapshot_capacity}; it must be at least 1")


_lock = threading.Lock()
_config: MegatronRuntimeConfig | None = None
_taken = False


def init_megatron_runtime_config(
    topology: MegatronTopologyConfig | None = None,
    *,
    packed_sequence_length: int = 8192,
    snapshot_capacity: int = 2,
) -> MegatronRuntimeConfig:
    """Sets the configuration for this process and returns it. The same values again are accepted.

    Args:
        topology: how ranks are cut (tp, cp, ep, etp, pp, vpp); by default one rank.
        packed_sequence_length: physical tokens per packed row, at least 1; a prompt and its answer must fit.
        snapshot_capacity: adapters that publication and durability may lag behind, at least 1.

    Raises:
        ValueError: a number is below 1.
        ConfigError: other values were set before, or a backend already runs with other values.
    """
    global _config
    wanted = MegatronRuntimeConfig(
        topology=topology if topology is not None else MegatronTopologyConfig(),
        packed_sequence_length=packed_sequence_length,
        snapshot_capacity=snapshot_capacity,
    )
    with _lock:
        if _config is not None and _config != wanted:
            why = (
                "a backend of this process already runs with" if _taken else "it was initialised before with"
            )
            raise ConfigError(
                f"the Megatron runtime configuration cannot change: {why} {_config}, now asked for {wanted}. "
                "Call art.init_megatron_runtime_config once, before the first MegatronBackend"
            )
        _config = wanted
        return wanted


def get_megatron_runtime_config() -> MegatronRuntimeConfig:
    """Returns the configuration, the default one if none was set; from then on it is fixed for this
    process."""
    global _config, _taken
    with _lock:
        if _config is None:
            _config = MegatronRuntimeConfig(topology=MegatronTopologyConfig())
        _taken = True
        return _config
