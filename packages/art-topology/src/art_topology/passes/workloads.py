"""The trainer and the services as placement sees them: labelled lists of placements."""

from collections.abc import Sequence
from functools import cached_property

from art_topology.cluster import CpuPlacement, GpuPlacement
from art_topology.passes.hosts import HostTable
from art_topology.serving import ModelServiceSpec
from art_topology.spec import GpuId
from art_topology.trainer import TrainerMeshSpec


class Workload:
    """The trainer or one service.

    Args:
        label: To be shown, such as "the trainer".
        path: Of its placements in the input.
        placements: On each host.
        service: Its index among the services; None for the trainer.
        takes_turns: Whether it is a service that runs in turn with the trainer.
    """

    def __init__(
        self,
        label: str,
        path: str,
        placements: Sequence[GpuPlacement | CpuPlacement],
        *,
        service: int | None = None,
        takes_turns: bool = False,
    ) -> None:
        self.label = label
        self.path = path
        self.placements = placements
        self.service = service
        self.takes_turns = takes_turns

    def path_of(self, index: int) -> str:
        """The path of one placement in the input."""
        return f"{self.path}[{index}]" + ("" if self.service is None else ".placement")

    @cached_property
    def host_ids(self) -> frozenset[str]:
        """The hosts it names."""
        return frozenset(placement.host_id for placement in self.placements)

    @property
    def named_hosts(self) -> list[str]:
        """The hosts it names, in order."""
        return [placement.host_id for placement in self.placements]

    @cached_property
    def process_count(self) -> int:
        """How many processes it has."""
        return sum(placement.process_count for placement in self.placements)

    @cached_property
    def device_kinds(self) -> frozenset[type]:
        """The kinds of placement it has; one unless ART-T205 was reported."""
        return frozenset(type(placement) for placement in self.placements)

    def may_share(self, other: "Workload") -> bool:
        """Whether both may have a process on the same GPU."""
        if self.service is None:
            return other.service is not None and other.takes_turns
        return other.service is None and self.takes_turns


def workloads_of(
    trainer: TrainerMeshSpec | None, services: Sequence[ModelServiceSpec]
) -> tuple[Workload, ...]:
    """Everything that has placements, the trainer first."""
    found = [] if trainer is None else [Workload("the trainer", "trainer.placements", trainer.placements)]
    for k, service in enumerate(services):
        found.append(
            Workload(
                f"service {service.name!r}",
                f"services[{k}].members",
                tuple(member.placement for member in service.members),
                service=k,
                takes_turns=service.temporal_sharing,
            )
        )
    return tuple(found)


def named_gpus(table: HostTable, workloads: Sequence[Workload]) -> dict[str, frozenset[GpuId]]:
    """The GPUs that placements name of hosts that list some twice."""
    doubtful = {host.host_id for host in table.cluster.hosts if len(set(host.gpus)) < len(host.gpus)}
    if not doubtful:
        return {}
    found: dict[str, set[GpuId]] = {}
    for workload in workloads:
        for placement in workload.placements:
            if isinstance(placement, GpuPlacement) and placement.host_id in doubtful:
                found.setdefault(placement.host_id, set()).update(placement.gpus)
    return {name: frozenset(gpus) for name, gpus in found.items()}
