"""The trainer's side of the search: its divisions, what is wrong with them, their times and their memory.

A division is everything but data parallelism, which is what the GPUs leave over. What the compiler would
refuse is found axis by axis, before axes are combined.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import lcm

import msgspec

from art_topology.cost.layer_times import Division
from art_topology.cost.trainer_costs import Contents, RowTime, TrainerCosts
from art_topology.memory import MemoryEstimate, trainer_memory
from art_topology.passes.trainer_division import Mesh, trainer_faults
from art_topology.planner.bounds import TrainerBounds
from art_topology.planner.problem import Problem, Savings
from art_topology.ranks import RankLayout
from art_topology.stages import StageError, StageLayout
from art_topology.trainer import MegatronTopologyConfig

LEAST_TOKENS = 1024
"""Fewest tokens of a row that context parallelism leaves to a rank."""
STAGES = tuple(sorted({odd << power for odd in (1, 3, 5, 7) for power in range(7) if odd << power <= 64}))
"""Numbers of pipeline stages that are tried."""
VIRTUAL_STAGES = (1, 2, 3, 4, 6, 8)
"""Numbers of virtual stages that are tried."""


_VARYING = ("optimizer", "NCCL", "allocator")
"""Beginnings of the names of memory that depends on the number of data-parallel ranks."""


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """One division of the layers.

    Args:
        pp: Stages.
        vpp: Virtual stages of each rank.
        text: Its layout string, where Megatron would not divide the layers so itself.
        stages: The stages.
        contents: What they hold.
    """

    pp: int
    vpp: int
    text: str | None
    stages: StageLayout
    contents: Contents


class TrainerDivision(msgspec.Struct, frozen=True, kw_only=True):
    """One division of the trainer's ranks.

    Args:
        index: Its place among all divisions; orders those that are equally fast.
        axes: What decides the time of a layer.
        pipeline: Its stages.
        dense: Ranks of one data-parallel copy.
        unit: The number of ranks is a multiple of it.
    """

    index: int
    axes: Division
    pipeline: Pipeline
    dense: int
    unit: int

    @property
    def parallel(self) -> MegatronTopologyConfig:
        """The division as Megatron's configuration."""
        axes, pipeline = self.axes, self.pipeline
        return MegatronTopologyConfig(
            tp=axes.tp,
            cp=axes.cp,
            ep=axes.ep,
            etp=axes.etp,
            pp=pipeline.pp,
            vpp=pipeline.vpp if pipeline.vpp > 1 else None,
            pipeline_layout=pipeline.text,
        )

    def layout(self, world: int) -> RankLayout:
        """The rank layout of so many ranks."""
        axes, pp = self.axes, self.pipeline.pp
        return RankLayout(
            tp=axes.tp,
            cp=axes.cp,
            dp=world // self.dense,
            pp=pp,
            etp=axes.etp,
            ep=axes.ep,
            expert_dp=world // (axes.etp * axes.ep * pp),
        )


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A division, or a value of one axis, that cannot run, and why."""

    parallel: MegatronTopologyConfig
    code: str
    reason: str


class Trainers:
    """Divisions for trainers with ``ranks_per_host`` ranks on each host.

    Args:
        problem: The search.
        ranks_per_host: Trainer ranks on each host.
        worlds: Numbers of ranks that the search considers.
    """

    def __init__(self, problem: Problem, ranks_per_host: int, worlds: tuple[int, ...]) -> None:
        self.problem, self.ranks_per_host, self.worlds = problem, ranks_per_host, worlds
        self.costs = TrainerCosts(
            problem.model,
            problem.workload,
            problem.machine,
            ranks_per_host=ranks_per_host,
            calibration=problem.calibration,
        )
        self.bounds = TrainerBounds(problem, self.costs)
        self.refusals: list[Refusal] = []
        self._by_savings = {savings: self.costs.with_savings(*savings) for savings in problem.savings}
        self._rows: dict[tuple[int, Savings], RowTime] = {}
        self._possible: dict[int, tuple[Savings, ...]] = {}
        self._all_layers: dict[Division, float] = {}
        self._units: dict[int, bool] = {}
        self._hopeless: set[tuple[int, Savings, int]] = set()
        self.groups: dict[tuple[int, Pipeline], list[TrainerDivision]] = {}
        for division in self._divisions():
            self.groups.setdefault((division.dense, division.pipeline), []).append(division)

    def rows(self, dense: int, world: int) -> int:
        """Rows of each data-parallel rank, if a copy has so many ranks."""
        return -(-self.costs.row.rows // (world // dense))

    def runs_on(self, dense: int, pipeline: Pipeline, world: int) -> tuple[str, str] | None:
        """Why a pipeline with so many ranks to a copy cannot run on a number of ranks that these divide:
        ranks without a row, or rows that do not fill the groups of virtual stages. A code and a sentence."""
        dp, rows = world // dense, self.costs.row.rows
        if dp > rows:
            return (
                "ART-T905",
                f"dp={dp} data-parallel ranks share {rows} rows of a step: {dp - rows} would have none",
            )
        each = self.rows(dense, world)
        if pipeline.vpp > 1 and each % pipeline.pp:
            return (
                "ART-T906",
                f"{each} rows of a data-parallel rank do not fill groups of pp={pipeline.pp} for virtual "
                "stages",
            )
        return None

    def least_row_s(self, division: TrainerDivision) -> float:
        """A lower bound of the time of one row: the mean stage without savings."""
        layers_s = self._all_layers.get(division.axes)
        if layers_s is None:
            layers_s = self._all_layers[division.axes] = self.costs.all_layers_s(division.axes)
        return layers_s / division.pipeline.pp

    def possible(self, division: TrainerDivision) -> tuple[Savings, ...]:
        """Savings with which the division may fit on some number of ranks."""
        found = self._possible.get(division.index)
        if found is None:
            rows = self.rows(division.dense, self.worlds[-1] // division.dense * division.dense)
            limit = self.problem.memory_limit_bytes
            found = self._possible[division.index] = tuple(
                savings
                for savings in self.problem.savings
                if self.at_least_bytes(division, savings, rows) <= limit
            )
        return found

    def row_time(self, division: TrainerDivision, savings: Savings) -> RowTime:
        """The time of one row."""
        key = (division.index, savings)
        found = self._rows.get(key)
        if found is None:
            costs = self._by_savings[savings]
            found = self._rows[key] = costs.row_time(division.axes, division.pipeline.contents)
        return found

    def steps_s(
        self, division: TrainerDivision, tried: Sequence[Savings], world: int
    ) -> list[tuple[float, Savings]]:
        """The time of a step on so many ranks, in seconds, with each of these savings."""
        layout, vpp = division.layout(world), division.pipeline.vpp
        rows = [self.row_time(division, savings) for savings in tried]
        synchronization = self.costs.synchronization_s(layout, rows[0]) if rows else (0.0, 0.0)
        return [
            (self._by_savings[savings].step_of_rows(layout, vpp, row, synchronization).step_s, savings)
            for row, savings in zip(rows, tried, strict=True)
        ]

    def costs_with(self, savings: Savings) -> TrainerCosts:
        """The costs with these savings."""
        return self._by_savings[savings]

    def at_least_bytes(self, division: TrainerDivision, savings: Savings, rows: int) -> float:
        """A lower bound of the memory of the fullest rank, with so many rows or more."""
        pipeline = division.pipeline
        return self.bounds.at_least(division.axes, pipeline.stages, pipeline.contents, savings, rows)

    def memory(self, division: TrainerDivision, savings: Savings, world: int) -> MemoryEstimate:
        """The memory of the fullest rank, or of the first one that is found to need more than there is. Of
        ranks that hold the same, the first has most rows in flight, so it stands for them."""
        workload, layout = self._by_savings[savings].workload, division.layout(world)
        pipeline, model = division.pipeline, self.problem.model
        fullest: MemoryEstimate | None = None
        for kind in range(len(pipeline.contents.distinct)):
            rank = pipeline.contents.of_rank.index(kind)
            found = trainer_memory(model, layout, pipeline.stages, workload, pp_rank=rank)
            if fullest is None or found.total_bytes > fullest.total_bytes:
                fullest = found
            if fullest.total_bytes > self.problem.memory_limit_bytes:
                break
        assert fullest is not None
        return fullest

    def never_fits(self, division: TrainerDivision, savings: Savings, world: int) -> bool:
        """Whether a larger estimate is known of the same division on other ranks: what does not depend on
        their number was more than there is."""
        return (division.index, savings, self._in_flight(division, world)) in self._hopeless

    def remember(
        self, division: TrainerDivision, savings: Savings, world: int, estimate: MemoryEstimate
    ) -> None:
        """Keeps in mind that an estimate is too large, if it is without what depends on the number of
        ranks."""
        varying = sum(part.bytes for part in estimate.parts if part.name.startswith(_VARYING))
        if estimate.total_bytes - varying > self.problem.memory_limit_bytes:
            self._hopeless.add((division.index, savings, self._in_flight(division, world)))

    def _in_flight(self, division: TrainerDivision, world: int) -> int:
        """Rows of a data-parallel rank, as far as they decide how many are in flight at once."""
        pipeline = division.pipeline
        return min(self.rows(division.dense, world), 2 * pipeline.pp * pipeline.vpp)

    def _divisions(self) -> Iterator[TrainerDivision]:
        """All divisions that the compiler takes on some number of ranks; the others become refusals."""
        if self._faulty(MegatronTopologyConfig()):
            return
        tps = [tp for tp in self._sizes(self.ranks_per_host) if not self._faulty(_config(tp=tp))]
        pipelines = [pipeline for pp in self._stage_counts() for pipeline in self._pipelines(pp)]
        experts = self._expert_axes(tps)
        longest = self.problem.workload.packed_sequence_length // LEAST_TOKENS
        index = 0
        for tp, cp in product(tps, self._sizes(max(1, longest))):
            if cp > 1 and self._faulty(_config(tp=tp, cp=cp)):
                continue
            for pipeline in pipelines:
                dense = tp * cp * pipeline.pp
                if not self._occurs(dense):
                    continue
                for ep, etp in experts:
                    unit = lcm(dense, etp * ep * pipeline.pp)
                    if etp in (1, tp) and self._occurs(unit):
                        axes = Division(tp, cp, ep, etp)
                        yield TrainerDivision(
                            index=index, axes=axes, pipeline=pipeline, dense=dense, unit=unit
                        )
                        index += 1

    def _occurs(self, unit: int) -> bool:
        """Whether it divides some number of ranks."""
        found = self._units.get(unit)
        if found is None:
            found = self._units[unit] = any(world % unit == 0 for world in self.worlds)
        return found

    def _expert_axes(self, tps: list[int]) -> list[tuple[int, int]]:
        if not self.problem.facts.experts:
            return [(1, 1)]
        eps = [ep for ep in self._sizes(max(self.worlds)) if not self._faulty(_config(ep=ep))]
        etps = [etp for etp in tps if etp == 1 or not self._faulty(_config(etp=etp))]
        return [(ep, etp) for ep in eps for etp in etps]

    def _sizes(self, most: int) -> list[int]:
        """Divisors of some number of ranks, up to a limit."""
        return [n for n in range(1, most + 1) if any(world % n == 0 for world in self.worlds)]

    def _stage_counts(self) -> list[int]:
        return [pp for pp in STAGES if any(world % pp == 0 for world in self.worlds)]

    def _pipelines(self, pp: int) -> Iterator[Pipeline]:
        """Pipelines of so many stages: as Megatron divides the layers itself where it can, otherwise as
        evenly as possible by a layout string."""
        layers = len(self.problem.model.layers)
        for vpp in VIRTUAL_STAGES if pp > 1 else (1,):
            virtual = vpp if vpp > 1 else None
            if pp * vpp > layers:
                reason = f"{layers} layers cannot fill {pp * vpp} stages (pp={pp}, vpp={vpp})"
                refused = _config(pp=pp, vpp=virtual)
                self.refusals.append(Refusal(parallel=refused, code="ART-T809", reason=reason))
                return
            text = None
            try:
                stages = StageLayout.uniform(layers, pp, virtual)
            except StageError:
                stages = StageLayout.balanced(layers, pp, virtual)
                text = stages.to_layout_string()
            yield Pipeline(pp=pp, vpp=vpp, text=text, stages=stages, contents=self.costs.contents(stages))

    def _faulty(self, parallel: MegatronTopologyConfig) -> bool:
        """Whether the compiler has something against it; the first fault becomes a refusal."""
        mesh = Mesh(world=None, per_host=self.ranks_per_host, on_gpus=True)
        workload = self._by_savings[self.problem.savings[0]].workload
        faults = trainer_faults(parallel, mesh, self.problem.facts, workload)
        if not faults and self.ranks_per_host % parallel.tp and max(self.worlds) > self.ranks_per_host:
            reason = f"hosts of {self.ranks_per_host} ranks do not hold whole groups of tp={parallel.tp}"
            self.refusals.append(Refusal(parallel=parallel, code="ART-T309", reason=reason))
            return True
        if faults:
            refusal = Refusal(parallel=parallel, code=faults[0].code, reason=faults[0].message)
            self.refusals.append(refusal)
        return bool(faults)


def _config(
    *, tp: int = 1, cp: int = 1, pp: int = 1, vpp: int | None = None, ep: int = 1, etp: int = 1
) -> MegatronTopologyConfig:
    return MegatronTopologyConfig(tp=tp, cp=cp, pp=pp, vpp=vpp, ep=ep, etp=etp)
