"""Specifications of a reinforcement-learning cluster, and a compiler that finds their mistakes.

What the planner is made of has modules of its own: :mod:`art_topology.models`, :mod:`art_topology.workload`,
:mod:`art_topology.memory`, :mod:`art_topology.hardware`, :mod:`art_topology.cost` and
:mod:`art_topology.planner`; pictures are :mod:`art_topology.render`. ``import art_topology`` loads none of
them.
"""

from typing import TYPE_CHECKING, Any

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
from art_topology.diagnostics import RULES, WARNINGS, Diagnostic, SourceLocation, TopologyError
from art_topology.files import (
    ModelSpec,
    TopologySource,
    TopologySpec,
    load_topology,
    parse_topology,
    read_topology,
    read_topology_text,
    topology_schema,
)
from art_topology.fingerprint import FingerprintError, topology_from_json, topology_to_json
from art_topology.local import homogeneous_cluster, local_cluster
from art_topology.ports import Listener, listeners
from art_topology.rank_group import RankGroup
from art_topology.ranks import GROUP_FAMILIES, GROUP_TITLES, GroupFamily, RankCoordinate, RankLayout
from art_topology.serving import ModelServiceMemberSpec, ModelServiceSpec, VllmParallelSpec
from art_topology.spec import GpuId, SpecError
from art_topology.stages import Stage, StageError, StageLayout, lay_out_stages, parse_layout, stages_of
from art_topology.trainer import MegatronTopologyConfig, TrainerMeshSpec
from art_topology.workload import WorkloadSpec

if TYPE_CHECKING:
    from art_topology.diff import Change, Part, TopologyDiff, diff_topologies
    from art_topology.models import load_model_config
    from art_topology.planner import plan
    from art_topology.suggestions import apply_suggestion

_HOME = {
    "Change": "art_topology.diff",
    "Part": "art_topology.diff",
    "TopologyDiff": "art_topology.diff",
    "apply_suggestion": "art_topology.suggestions",
    "diff_topologies": "art_topology.diff",
    "load_model_config": "art_topology.models",
    "plan": "art_topology.planner",
}

__all__ = [
    "GROUP_FAMILIES",
    "GROUP_TITLES",
    "RULES",
    "WARNINGS",
    "Change",
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
    "FingerprintError",
    "GpuDevice",
    "GpuId",
    "GpuPlacement",
    "GroupFamily",
    "HostSpec",
    "Listener",
    "MegatronTopologyConfig",
    "ModelServiceMemberSpec",
    "ModelServiceSpec",
    "ModelSpec",
    "NcclTransportSpec",
    "NixlTransportSpec",
    "Part",
    "Placement",
    "RankCoordinate",
    "RankGroup",
    "RankLayout",
    "RuntimeTopology",
    "SourceLocation",
    "SpecError",
    "Stage",
    "StageError",
    "StageLayout",
    "TopologyDiff",
    "TopologyError",
    "TopologySource",
    "TopologySpec",
    "TrainerHost",
    "TrainerMeshSpec",
    "TrainerRank",
    "UnresolvedPortError",
    "VllmParallelSpec",
    "WorkloadSpec",
    "apply_suggestion",
    "compile_topology",
    "diff_topologies",
    "homogeneous_cluster",
    "lay_out_stages",
    "listeners",
    "load_model_config",
    "load_topology",
    "local_cluster",
    "parse_layout",
    "parse_topology",
    "plan",
    "read_topology",
    "read_topology_text",
    "stages_of",
    "topology_from_json",
    "topology_schema",
    "topology_to_json",
]

if not TYPE_CHECKING:  # so that type checkers still know which names do not exist

    def __getattr__(name: str) -> Any:
        import importlib

        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module 'art_topology' has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
