"""Turns a selection of trajectories into one packed batch.

Three steps: *fetch* the records from their owners, *plan* (pure: what goes where, so that the size is known),
*write* straight into the shared-memory segment that the trainer maps.

What always holds:

- A row has at most ``packed_sequence_length`` physical tokens. A tree above that is split at branches.
- Every completion token of every packed trajectory has exactly one loss entry, and nothing else has one. What
  its source position can see in its row is exactly the prompt and completion before it, at positions from 0
  on.
- A token that predicts nothing (the last of a sequence) is a target only; it is no physical token.
- The weights of a batch sum to 1, up to float32 rounding; by the rule ``"constant"`` to something else (see
  :class:`LossWeightRule`).
- Failed records take part in nothing, and are counted.
"""

import secrets
import time
from collections.abc import Mapping, Sequence

import msgspec

from art_dataplane.advantages import AdvantageRule
from art_dataplane.batch import Objective, PackedBatchRef, PackingCounts, PackingTiming, view_tensors
from art_dataplane.choices import check_choices
from art_dataplane.context_plan import ContextPlan, ContextRule, plan_rows
from art_dataplane.fetching import fetch_groups
from art_dataplane.kl import KlRule
from art_dataplane.leases import Lease
from art_dataplane.packing_plan import LossWeightRule, MergeRoutes, PackingPlan, plan_packing
from art_dataplane.queue import Selection
from art_dataplane.records import TrajectoryRecord
from art_dataplane.shm import ShmSegmentStore
from art_dataplane.store import RecordOwner

__all__ = ["PackingRequest", "PackingResult", "PackingTiming", "pack", "pack_selection"]


class PackingRequest(msgspec.Struct, frozen=True):
    """What to pack, and how.

    Args:
        selection: groups of references under a lease of the queue.
        packed_sequence_length: physical tokens of a row, at most.
        ticket: counts packing attempts.
        policy_version: the version that the step with this batch starts from; no token may be of a later one.
        advantage: see :class:`AdvantageRule`.
        loss_weight: see :class:`LossWeightRule`.
        holder: who gets the batch's lease.
        lease_s: for how many seconds.
        kl: see :class:`KlRule`.
        objective: ``"sft"`` gives every target the advantage 1; see :data:`~art_dataplane.batch.Objective`.
        context: how rows are split over context-parallel ranks; None leaves that out.
        merge_routes: which equal tokens are computed once when there are routes: ``"equal"`` those that went
            to the same experts, ``"first"`` all; see :data:`art_dataplane.packing_plan.MergeRoutes`.
    """

    selection: Selection
    packed_sequence_length: int
    ticket: int
    policy_version: int
    advantage: AdvantageRule = AdvantageRule()
    loss_weight: LossWeightRule = LossWeightRule()
    holder: str = "trainer"
    lease_s: float = 600.0
    kl: KlRule = KlRule()
    objective: Objective = "rl"
    context: ContextRule | None = None
    merge_routes: MergeRoutes = "equal"

    def __post_init__(self) -> None:
        check_choices(self)

    @property
    def record_ids(self) -> tuple[str, ...]:
        """The records asked for, group after group."""
        return tuple(ref.record_id for ref in self.selection.refs)

    @property
    def group_ids(self) -> tuple[str, ...]:
        """The groups asked for, each once."""
        return tuple(dict.fromkeys(ref.group_id for ref in self.selection.refs))


class PackingResult(msgspec.Struct, frozen=True):
    """What became of a selection.

    Args:
        ref: the batch; None when there is nothing to train on.
        counts: how much was packed, and what was left out and why (no variance, failed, no targets).
        timing: how long it took.
        ticket: of the request.
        selection_lease: the queue's lease under which the records were taken; to be released whatever became
            of them.
    """

    ref: PackedBatchRef | None
    counts: PackingCounts
    timing: PackingTiming
    ticket: int = 0
    selection_lease: Lease | None = None


async def pack_selection(
    request: PackingRequest,
    owners: Mapping[str, RecordOwner],
    segments: ShmSegmentStore,
    deadline_s: float,
    *,
    owner: str,
) -> PackingResult:
    """Fetches a selection's records from their owners and packs them.

    Args:
        request: what to pack.
        owners: record owners by the name that references carry.
        segments: where the batch goes; its process owns the batch and answers for its lease.
        deadline_s: seconds within which all records must have come.
        owner: the name under which others reach the process of ``segments``.

    Raises:
        PackingError: an owner is unknown, did not send what was asked for, or the records cannot be packed as
            asked.
        DeadlineError: not all records came in time.
        RecordsLostError: records of some groups are gone; it names these groups.
        LeaseError: an owner has seen a higher fence for a record.
        ShmError: a segment of an owner is gone, or (ShmFullError) the batch finds no room.
    """
    started = time.monotonic()
    groups = await fetch_groups(request.selection, owners, deadline_s)
    return pack(groups, request, segments, owner=owner, fetch_s=time.monotonic() - started)


def pack(
    groups: Sequence[Sequence[TrajectoryRecord]],
    request: PackingRequest,
    segments: ShmSegmentStore,
    *,
    owner: str,
    fetch_s: float = 0.0,
) -> PackingResult:
    """Packs records that are at hand into a new segment of ``segments``, leased to ``request.holder``.

    Args:
        groups: the records of the request's selection, in its order.
        request: how to pack.
        segments: where the batch goes.
        owner: the name under which others reach the process of ``segments``.
        fetch_s: seconds that fetching the records took; goes into the timing.

    Raises:
        PackingError: a trajectory does not fit into a row, or the records contradict each other or the
            request.
        ShmFullError: no room for the batch.
    """
    started = time.monotonic()
    plan = plan_packing(
        groups,
        packed_sequence_length=request.packed_sequence_length,
        policy_version=request.policy_version,
        advantage=request.advantage,
        loss_weight=request.loss_weight,
        kl=request.kl,
        objective=request.objective,
        merge_routes=request.merge_routes,
    )
    planned = time.monotonic()
    timing = PackingTiming(fetch_s, planned - started, 0.0)
    if plan.counts.loss_entries == 0:
        return PackingResult(None, plan.counts, timing, request.ticket, request.selection.lease)
    with segments.reserve(plan.byte_count) as reservation:
        plan.write(reservation.buffer)
        written = time.monotonic()
        context = _plan_context(plan, reservation.buffer, request.context)
        location = reservation.commit()
    timing = PackingTiming(fetch_s, planned - started, written - planned, time.monotonic() - written)
    ref = PackedBatchRef(
        batch_id=f"batch-{request.ticket:08d}-{secrets.token_hex(4)}",
        owner=owner,
        lease=segments.grant(location, request.holder, request.lease_s),
        tensors=plan.tensors,
        byte_count=plan.byte_count,
        location=location,
        ticket=request.ticket,
        packed_sequence_length=request.packed_sequence_length,
        counts=plan.counts,
        versions=plan.versions if request.objective == "rl" else (),
        record_ids=plan.record_ids,
        group_ids=plan.group_ids,
        policy_version=request.policy_version,
        objective=request.objective,
        adapter_generations=_adapter_generations(groups, plan.record_ids),
        selection_lease=request.selection.lease,
        timing=timing,
        context=context,
    )
    return PackingResult(ref, plan.counts, timing, request.ticket, request.selection.lease)


def _plan_context(plan: PackingPlan, buffer: memoryview, rule: ContextRule | None) -> tuple[ContextPlan, ...]:
    if rule is None:
        return ()
    written = view_tensors(plan.tensors, buffer)
    return plan_rows(written["position_ids"], written["subtree_end"], written["row_offsets"], rule)


def _adapter_generations(
    groups: Sequence[Sequence[TrajectoryRecord]], record_ids: tuple[str, ...]
) -> tuple[str, ...]:
    packed = set(record_ids)
    exchanges = (
        exchange
        for group in groups
        for record in group
        if record.record_id in packed
        for exchange in record.exchanges
    )
    names = {exchange.adapter_generation for exchange in exchanges if len(exchange.completion_ids)}
    return tuple(sorted(name for name in names if name is not None))
