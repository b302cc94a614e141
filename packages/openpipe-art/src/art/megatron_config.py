"""The process-wide configuration of the Megatron runtime: set once, before the backend takes it.

Invariant: after :func:`get_megatron_runtime_config` gave a configuration out, it never changes in this
    process.
"""

import threading

import msgspec

from art.calls import checked_call
from art.errors import ConfigError
from art.settings import SettingsMeta, instance, keep, whole_number
from art_topology import MegatronTopologyConfig

MOST_TOKENS = 2**24
"""More than any model reads at once."""

MOST_SNAPSHOTS = 64


class MegatronRuntimeConfig(msgspec.Struct, frozen=True, kw_only=True, metaclass=SettingsMeta):
    """What :class:`~art.backend.MegatronBackend` runs with.

    Args:
        topology: how ranks are cut (tp, cp, ep, etp, pp, vpp); the default is one rank.
        packed_sequence_length: physical tokens per packed row, 1 to 16777216; a prompt and its answer
            must fit.
        snapshot_capacity: adapters that publication and durability may lag behind, 1 to 64.

    Raises:
        SettingError: a value is of a wrong type or out of its range.
    """

    topology: MegatronTopologyConfig
    packed_sequence_length: int = 8192
    snapshot_capacity: int = 2

    def __post_init__(self) -> None:
        instance("topology", self.topology, MegatronTopologyConfig, "topology=art.MegatronTopologyConfig()")
        keep(
            self,
            packed_sequence_length=whole_number(
                "packed_sequence_length", self.packed_sequence_length, 2048, at_most=MOST_TOKENS
            ),
            snapshot_capacity=whole_number(
                "snapshot_capacity", self.snapshot_capacity, 2, at_most=MOST_SNAPSHOTS
            ),
        )


_lock = threading.Lock()
_config: MegatronRuntimeConfig | None = None
_taken = False


@checked_call
def init_megatron_runtime_config(
    topology: MegatronTopologyConfig | None = None,
    *,
    packed_sequence_length: int = 8192,
    snapshot_capacity: int = 2,
) -> MegatronRuntimeConfig:
    """Sets the configuration for this process and returns it. The same values again are accepted.

    Args:
        topology: how ranks are cut (tp, cp, ep, etp, pp, vpp); by default one rank.
        packed_sequence_length: physical tokens per packed row, 1 to 16777216; a prompt and its answer
            must fit.
        snapshot_capacity: adapters that publication and durability may lag behind, 1 to 64.

    Raises:
        SettingError: a value is of a wrong type or out of its range.
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
