"""The search: trainer and service of every split, joined best first.

A pair is ordered by the step of the loop, then by the GPUs it uses, then by the sum of training and rollouts.
Divisions of the trainer wait in a heap with the key of their best pair, computed from a lower bound of their
step; the first one is looked at more closely (exact time, then memory in full) and goes back, until it is
settled and still the first. So only what can be among the results is computed in full, and the result is the
same as if everything were.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import accumulate
from time import perf_counter

import msgspec

from art_topology.cluster import ClusterSpec
from art_topology.cost import Calibration
from art_topology.cost.loop import publication_s
from art_topology.hardware import HardwareTable
from art_topology.memory import MemoryEstimate
from art_topology.models import ModelDescription
from art_topology.planner.fit import no_room, plan_of, too_large
from art_topology.planner.problem import (
    MEMORY_MARGIN,
    Problem,
    Savings,
    problem_of,
    savings_of,
    splits_of,
)
from art_topology.planner.results import (
    Plan,
    PlannedLayout,
    PlanReport,
    RejectedLayout,
    RejectionCount,
    Side,
    Split,
)
from art_topology.planner.services import Served, ServiceRefusal, serve, service_divisions
from art_topology.planner.trainers import Refusal, TrainerDivision, Trainers
from art_topology.serving import ServedWeights, VllmParallelSpec
from art_topology.spec import SpecError
from art_topology.trainer import MegatronTopologyConfig
from art_topology.workload import Offload, Recompute, WorkloadSpec


def plan(
    *,
    model: ModelDescription,
    cluster: ClusterSpec,
    workload: WorkloadSpec,
    hardware: HardwareTable | None = None,
    machine: str | None = None,
    trainer_gpus: int | None = None,
    limit: int = 20,
    search_savings: bool = True,
    recompute: Recompute | None = None,
    offload: tuple[Offload, ...] | None = None,
    memory_margin: float = MEMORY_MARGIN,
    gpu_memory_utilization: float = 0.9,
    calibration: Calibration | None = None,
    service_weights: ServedWeights = "auto",
) -> PlanReport:
    """Searches the layouts of trainer and service together.

    Args:
        model: The model, trained and served. Layers of multi-token prediction are not trained.
        cluster: The hosts; their GPUs are of one kind.
        workload: The step and its rollouts.
        hardware: The table to look GPUs up in; by default the package's.
        machine: Name of a node or GPU in that table; by default what the hosts say (``gpu_model``).
        trainer_gpus: GPUs for the trainer; by default the search decides.
        limit: How many results to return.
        search_savings: Recomputation and offload are searched too, the fastest that fits for each division,
            where the workload has the default; otherwise they are as the workload says.
        recompute: The only recomputation to try, in place of the workload's.
        offload: The only offload to try, in place of the workload's.
        memory_margin: Share of each GPU's memory that the trainer leaves free.
        gpu_memory_utilization: Share of each GPU's memory that the service may use.
        calibration: Other constants of the costs than the defaults.
        service_weights: How the service's weights are stored; by default as the model's configuration says.

    Raises:
        SpecError: the hosts have no GPU or slices of GPUs, differ, or name none that is in the table; the
            sequences are longer than the model's context; or the GPUs cannot be divided between trainer and
            service, or not so that the trainer has ``trainer_gpus``.
    """
    started = perf_counter()
    problem = problem_of(
        model,
        cluster,
        workload,
        hardware=hardware,
        machine=machine,
        savings=savings_of(workload, search=search_savings, recompute=recompute, offload=offload),
        memory_margin=memory_margin,
        gpu_memory_utilization=gpu_memory_utilization,
        calibration=calibration,
        service_weights=service_weights,
    )
    splits = splits_of(problem, trainer_gpus)
    if not splits:
        wanted = "trainer and service GPUs" if trainer_gpus is None else f"the trainer {trainer_gpus} of them"
        raise SpecError(
            f"no division of {problem.hosts} x {problem.gpus_per_host} GPUs gives {wanted}: each side has "
            "whole hosts, or on up to 4 hosts as many GPUs of every host"
        )
    search = Search(problem, splits)
    ranked = tuple(search.run(limit))
    return PlanReport(
        ranked=ranked,
        rejected=search.rejected(),
        searched=search.searched,
        outranked=search.outranked,
        duration_s=perf_counter() - started,
    )


class _Trained(msgspec.Struct):
    """A division of the trainer on some ranks, as far as it is known.

    ``step_s`` is a lower bound of its step. ``savings``, once they are asked for, may fit, each with its
    exact step, in the order in which they are tried. ``fits`` once one of them does, which is then alone, and
    ``step_s`` exact.
    """

    trainers: Trainers
    division: TrainerDivision
    hosts: int
    step_s: float
    savings: list[tuple[float, Savings]] | None = None
    estimate: MemoryEstimate | None = None
    fits: bool = False

    @property
    def world(self) -> int:
        return self.hosts * self.trainers.ranks_per_host


_Key = tuple[float, int, float]
"""Step of the loop, GPUs used, and sum of training and rollouts."""


class _Partners:
    """The services that a division of the trainer can be joined with, fastest first."""

    def __init__(self, entries: list[Served], publication_s: float) -> None:
        self.entries = sorted(entries, key=lambda entry: (entry.rollout_s, entry.gpus))
        self._publication_s = publication_s
        self._rollouts = [entry.rollout_s for entry in self.entries]
        smallest = ((entry.gpus, entry.rollout_s) for entry in self.entries)
        self._smallest = list(accumulate(smallest, min))

    def key(self, served: Served, step_s: float, gpus: int) -> _Key:
        """Of one pair, whose trainer takes so long on so many GPUs."""
        pace_s = max(step_s, served.rollout_s, self._publication_s)
        return pace_s, gpus + served.gpus, step_s + served.rollout_s

    def best(self, step_s: float, gpus: int) -> _Key:
        """Of the best pair: the smallest service that keeps up, else the fastest."""
        count = bisect_right(self._rollouts, max(step_s, self._publication_s))
        if not count:
            return self.key(self.entries[0], step_s, gpus)
        served, rollout_s = self._smallest[count - 1]
        return max(step_s, self._publication_s), gpus + served, step_s + rollout_s

    def ordered(self, step_s: float, gpus: int) -> list[Served]:
        """All, best pair first."""
        return sorted(self.entries, key=lambda served: self.key(served, step_s, gpus))


class Search:
    """One search over given splits."""

    def __init__(self, problem: Problem, splits: tuple[Split, ...]) -> None:
        self.problem, self.splits = problem, splits
        self.searched = self.outranked = 0
        self._counts: Counter[tuple[Side, str]] = Counter()
        self._examples: dict[tuple[Side, str], tuple[float, RejectedLayout]] = {}
        self._publication_s = publication_s(
            problem.model, problem.workload, problem.machine, problem.calibration
        )

    def run(self, limit: int) -> Iterator[Plan]:
        """The best plans, best first."""
        served = self._serve()
        overhead_s = self.problem.calibration.loop_overhead_s
        heap: list[tuple[_Key, int, int, _Trained, _Partners]] = []
        for trained, partners in self._trained(served):
            key = partners.best(trained.step_s + overhead_s, trained.world)
            heap.append((key, len(heap), 0, trained, partners))
        heapify(heap)
        ordered: dict[int, list[Served]] = {}
        found = 0
        while heap and found < limit:
            _, order, index, trained, partners = heappop(heap)
            step_s = trained.step_s + overhead_s
            if not self._settle(trained):
                if trained.savings is None or trained.savings:
                    key = partners.best(trained.step_s + overhead_s, trained.world)
                    heappush(heap, (key, order, index, trained, partners))
                continue
            if order not in ordered:
                ordered[order] = partners.ordered(step_s, trained.world)
            mine = ordered[order]
            yield self._plan(trained, mine[index])
            found += 1
            if index + 1 < len(mine):
                key = partners.key(mine[index + 1], step_s, trained.world)
                heappush(heap, (key, order, index + 1, trained, partners))
        self.outranked = len({entry[1] for entry in heap if not entry[3].fits})

    def rejected(self) -> tuple[RejectionCount, ...]:
        """Why divisions cannot run, most frequent first."""
        return tuple(
            RejectionCount(side=side, code=code, count=count, example=self._examples[side, code][1])
            for (side, code), count in self._counts.most_common()
        )

    def _serve(self) -> dict[tuple[int, int], list[Served]]:
        """For each number of hosts and GPUs on them, the divisions of the service that fit, fastest first."""
        found: dict[tuple[int, int], list[Served]] = {}
        for split in self.splits:
            key = (split.service_hosts, split.service_gpus_per_host)
            if key in found:
                continue
            found[key] = []
            for parallel in service_divisions(self.problem, split.service_gpus):
                self.searched += 1
                served = serve(self.problem, *key, parallel)
                if isinstance(served, Served):
                    found[key].append(served)
                else:
                    self._refuse_service(split, served)
        return found

    def _trained(self, served: dict[tuple[int, int], list[Served]]) -> Iterator[tuple[_Trained, _Partners]]:
        """Divisions of the trainer that may fit, each with the services it can be joined with."""
        partners: dict[tuple[int, int, bool], list[Served]] = {}
        sides: dict[tuple[int, int, bool], Split] = {}
        for split in self.splits:
            side = (split.trainer_hosts, split.trainer_gpus_per_host, split.shared)
            sides.setdefault(side, split)
            mine = partners.setdefault(side, [])
            mine += served[split.service_hosts, split.service_gpus_per_host]
        groups: dict[int, set[int]] = {}
        for hosts, per_host, _ in sides:
            groups.setdefault(per_host, set()).add(hosts * per_host)
        trainers = {
            per_host: Trainers(self.problem, per_host, tuple(sorted(worlds)))
            for per_host, worlds in groups.items()
        }
        for per_host, candidates in trainers.items():
            example = next(split for split in self.splits if split.trainer_gpus_per_host == per_host)
            for refusal in candidates.refusals:
                self._refuse_trainer(example, refusal)
        for side_key, mine in partners.items():
            hosts, per_host, _ = side_key
            joined = _Partners(mine, self._publication_s)
            for entry in self._candidates(trainers[per_host], hosts, sides[side_key]):
                if mine:
                    yield entry, joined

    def _candidates(self, trainers: Trainers, hosts: int, split: Split) -> Iterator[_Trained]:
        """The divisions of so many hosts, with what their arithmetic takes at least."""
        world = hosts * trainers.ranks_per_host
        for (dense, pipeline), group in trainers.groups.items():
            if world % dense:
                continue
            divisions = [division for division in group if world % division.unit == 0]
            self.searched += len(divisions)
            refused = trainers.runs_on(dense, pipeline, world)
            if refused is not None and divisions:
                refusal = Refusal(parallel=divisions[0].parallel, code=refused[0], reason=refused[1])
                self._refuse_trainer(split, refusal, len(divisions))
                continue
            rows = trainers.rows(dense, world)
            for division in divisions:
                least_s = rows * trainers.least_row_s(division)
                yield _Trained(trainers=trainers, division=division, hosts=hosts, step_s=least_s)

    def _settle(self, trained: _Trained) -> bool:
        """One step towards knowing a candidate; True if there was nothing left to know."""
        if trained.fits:
            return True
        trainers, division, world = trained.trainers, trained.division, trained.world
        if trained.savings is None:
            possible = [s for s in trainers.possible(division) if not trainers.never_fits(division, s, world)]
            exact = trainers.steps_s(division, possible, world)
            trained.savings = sorted(exact, key=lambda pair: (len(pair[1][1]), pair[0]))
            if not possible:
                self._refuse_too_large(trained)
        else:
            savings = trained.savings[0][1]
            trained.estimate = trainers.memory(division, savings, world)
            refused = no_room(self.problem, trained.estimate, trainers.ranks_per_host)
            if refused is None:
                trained.fits, trained.savings = True, trained.savings[:1]
            else:
                trainers.remember(division, savings, world, trained.estimate)
                trained.savings.pop(0)
                if not trained.savings:
                    self._refuse_division(trained, *refused, trained.estimate.total_bytes)
        trained.step_s = min((step_s for step_s, _ in trained.savings), default=trained.step_s)
        return False

    def _refuse_too_large(self, trained: _Trained) -> None:
        """Says why no recomputation and offload makes a division fit: by the least that a rank needs, if that
        is too much, else by all that it needs, on the GPU or on its host."""
        trainers, division = trained.trainers, trained.division
        rows = trainers.rows(division.dense, trained.world)
        least, savings = min((trainers.at_least_bytes(division, s, rows), s) for s in self.problem.savings)
        if least > self.problem.memory_limit_bytes:
            self._refuse_division(trained, "trainer-memory", too_large(self.problem, least), least)
            return
        estimate = trainers.memory(division, savings, trained.world)
        refused = no_room(self.problem, estimate, trainers.ranks_per_host)
        assert refused is not None, "what never fits does not fit"
        self._refuse_division(trained, *refused, estimate.total_bytes)

    def _refuse_division(self, trained: _Trained, code: str, reason: str, needed: float) -> None:
        split = next(split for split in self.splits if split.trainer_gpus == trained.world)
        refusal = Refusal(parallel=trained.division.parallel, code=code, reason=reason)
        self._refuse_trainer(split, refusal, needed=needed)

    def _plan(self, trained: _Trained, served: Served) -> Plan:
        assert trained.savings
        assert trained.estimate is not None
        savings, trainers, division = trained.savings[0][1], trained.trainers, trained.division
        split = Split(
            trainer_hosts=trained.hosts,
            trainer_gpus_per_host=trainers.ranks_per_host,
            service_hosts=served.hosts,
            service_gpus_per_host=served.per_host,
            shared=trainers.ranks_per_host < self.problem.gpus_per_host,
        )
        layout = PlannedLayout(
            split=split,
            trainer=division.parallel,
            service=served.parallel,
            recompute=savings[0],
            offload=savings[1],
        )
        costs, ranks = trainers.costs_with(savings), division.layout(trained.world)
        return plan_of(self.problem, layout, costs, ranks, division.pipeline.stages, trained.estimate, served)

    def _refuse_trainer(self, split: Split, refusal: Refusal, count: int = 1, needed: float = 0.0) -> None:
        service = VllmParallelSpec(tp=1, dp=split.service_gpus)
        layout = PlannedLayout(split=split, trainer=refusal.parallel, service=service)
        self._refuse("trainer", refusal.code, layout, refusal.reason, count, needed)

    def _refuse_service(self, split: Split, refusal: ServiceRefusal) -> None:
        layout = PlannedLayout(split=split, trainer=MegatronTopologyConfig(), service=refusal.parallel)
        self._refuse("service", refusal.code, layout, refusal.reason, lacks=refusal.lacks_bytes)

    def _refuse(
        self,
        side: Side,
        code: str,
        layout: PlannedLayout,
        reason: str,
        count: int = 1,
        lacks: float = 0.0,
    ) -> None:
        """Counts it; the example is the one that lacks least."""
        self._counts[side, code] += count
        known = self._examples.get((side, code))
        if known is None or lacks < known[0]:
            self._examples[side, code] = lacks, RejectedLayout(layout=layout, code=code, reason=reason)
