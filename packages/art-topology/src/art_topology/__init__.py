"""Specifications of a reinforcement-learning cluster, and a compiler that finds their mistakes."""

from art_topology.cluster import (
    ClusterSpec,
    CpuPlacement,
    EndpointSpec,
    GpuPlacement,
    HostSpec,
    NcclTransportSpec,
    NixlTransportSpec,
    Placement,
    UnresolvedPortError,
)
from art_topology.compiled import (
    CompiledHost,
    CompiledMember,
    CompiledService,
    CompiledTrainer,
    CpuDevice,
    Device,
    GpuDevice,
    RuntimeTopology,
    TrainerHost,
    TrainerRank,
)
from art_topology.compiler import compile_topology
from art_topology.diagnostics import RULES, Diagnostic, TopologyError
from art_topology.files import TopologySpec, load_topology, parse_topology, topology_schema
from art_topology.local import homogeneous_cluster, local_cluster
from art_topology.ports import Listener, listeners
from art_topology.ranks import GROUP_FAMILIES, GroupFamily, RankCoordinate, RankGroup, RankLayout
from art_topology.serving import ModelServiceMemberSpec, ModelServiceSpec, VllmParallelSpec
from art_topology.spec import GpuId, SpecError
from art_topology.trainer import MegatronTopologyConfig, TrainerMeshSpec

__all__ = [
    "GROUP_FAMILIES",
    "RULES",
    "ClusterSpec",
    "CompiledHost",
    "CompiledMember",
    "CompiledService",
    "CompiledTrainer",
    "CpuDevice",
    "CpuPlacement",
    "Device",
    "Diagnostic",
    "EndpointSpec",
    "GpuDevice",
    "GpuId",
    "GpuPlacement",
    "GroupFamily",
    "HostSpec",
    "Listener",
    "MegatronTopologyConfig",
    "ModelServiceMemberSpec",
    "ModelServiceSpec",
    "NcclTransportSpec",
    "NixlTransportSpec",
    "Placement",
    "RankCoordinate",
    "RankGroup",
    "RankLayout",
    "RuntimeTopology",
    "SpecError",
    "TopologyError",
    "TopologySpec",
    "TrainerHost",
    "TrainerMeshSpec",
    "TrainerRank",
    "UnresolvedPortError",
    "VllmParallelSpec",
    "compile_topology",
    "homogeneous_cluster",
    "listeners",
    "load_topology",
    "local_cluster",
    "parse_topology",
    "topology_schema",
]
