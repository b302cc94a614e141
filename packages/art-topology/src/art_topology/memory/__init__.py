"""Bytes per device, part by part: the trainer's ranks and the services' workers."""

from art_topology.memory.parts import MemoryEstimate, MemoryPart, ServiceMemory
from art_topology.memory.service import service_memory
from art_topology.memory.trainer import trainer_memory

__all__ = ["MemoryEstimate", "MemoryPart", "ServiceMemory", "service_memory", "trainer_memory"]
