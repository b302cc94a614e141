"""The distributed runtime: hosts, actors, rollouts.

Importing it loads neither monarch nor torch; every public name is loaded on first use. What needs Monarch
needs the extra ``openpipe-art[distributed]``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art.distributed.callables import InstalledAsyncCallable
    from art.distributed.errors import (
        ActorDied,
        ActorTimeout,
        CallableError,
        CloseError,
        GroupsLost,
        PartFailed,
        ProgramError,
        RemoteError,
        RuntimeFailure,
        StartupError,
    )
    from art.distributed.handle import ActorHandle
    from art.distributed.host_meshes import HostMeshes
    from art.distributed.launch import ArtLaunchContext
    from art.distributed.peer import PeerRecordOwner
    from art.distributed.rollouts import RolloutExecutor
    from art.distributed.runtime import ArtRuntime
    from art_dataplane import PackedBatchRef, PackingRequest
    from art_topology import (
        ClusterSpec,
        CpuPlacement,
        EndpointSpec,
        GpuPlacement,
        HostSpec,
        ModelServiceMemberSpec,
        ModelServiceSpec,
        NcclTransportSpec,
        NixlTransportSpec,
        RuntimeTopology,
        TopologyError,
        TrainerMeshSpec,
        VllmParallelSpec,
        compile_topology,
        homogeneous_cluster,
        local_cluster,
    )

_HOME = {
    "ActorDied": "art.distributed.errors",
    "ActorHandle": "art.distributed.handle",
    "ActorTimeout": "art.distributed.errors",
    "ArtLaunchContext": "art.distributed.launch",
    "ArtRuntime": "art.distributed.runtime",
    "CallableError": "art.distributed.errors",
    "CloseError": "art.distributed.errors",
    "ClusterSpec": "art_topology",
    "CpuPlacement": "art_topology",
    "EndpointSpec": "art_topology",
    "GpuPlacement": "art_topology",
    "GroupsLost": "art.distributed.errors",
    "HostMeshes": "art.distributed.host_meshes",
    "HostSpec": "art_topology",
    "InstalledAsyncCallable": "art.distributed.callables",
    "ModelServiceMemberSpec": "art_topology",
    "ModelServiceSpec": "art_topology",
    "NcclTransportSpec": "art_topology",
    "NixlTransportSpec": "art_topology",
    "PackedBatchRef": "art_dataplane",
    "PackingRequest": "art_dataplane",
    "PeerRecordOwner": "art.distributed.peer",
    "PartFailed": "art.distributed.errors",
    "ProgramError": "art.distributed.errors",
    "RemoteError": "art.distributed.errors",
    "RolloutExecutor": "art.distributed.rollouts",
    "RuntimeFailure": "art.distributed.errors",
    "RuntimeTopology": "art_topology",
    "StartupError": "art.distributed.errors",
    "TopologyError": "art_topology",
    "TrainerMeshSpec": "art_topology",
    "VllmParallelSpec": "art_topology",
    "compile_topology": "art_topology",
    "homogeneous_cluster": "art_topology",
    "local_cluster": "art_topology",
}

__all__ = [
    "ActorDied",
    "ActorHandle",
    "ActorTimeout",
    "ArtLaunchContext",
    "ArtRuntime",
    "CallableError",
    "CloseError",
    "ClusterSpec",
    "CpuPlacement",
    "EndpointSpec",
    "GpuPlacement",
    "GroupsLost",
    "HostMeshes",
    "HostSpec",
    "InstalledAsyncCallable",
    "ModelServiceMemberSpec",
    "ModelServiceSpec",
    "NcclTransportSpec",
    "NixlTransportSpec",
    "PackedBatchRef",
    "PackingRequest",
    "PartFailed",
    "PeerRecordOwner",
    "ProgramError",
    "RemoteError",
    "RolloutExecutor",
    "RuntimeFailure",
    "RuntimeTopology",
    "StartupError",
    "TopologyError",
    "TrainerMeshSpec",
    "VllmParallelSpec",
    "compile_topology",
    "homogeneous_cluster",
    "local_cluster",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'art.distributed' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        from art.checks.packages import missing_extra

        raise missing_extra(f"art.distributed.{name}", error) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
