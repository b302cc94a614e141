"""Bytes per device, part by part: the trainer's ranks and the services' workers."""

from art_topology.memory.activations import SavedTensor, saved_tensors
from art_topology.memory.assumptions import MemoryAssumptions
from art_topology.memory.parts import MemoryEstimate, MemoryPart, ServiceMemory
from art_topology.memory.pipeline import in_flight
from art_topology.memory.service import service_memory
from art_topology.memory.trainer import trainer_memory
from art_topology.memory.weights import RankParameters, rank_parameters

__all__ = [
    "MemoryAssumptions",
    "MemoryEstimate",
    "MemoryPart",
    "RankParameters",
    "SavedTensor",
    "ServiceMemory",
    "in_flight",
    "rank_parameters",
    "saved_tensors",
    "service_memory",
    "trainer_memory",
]
