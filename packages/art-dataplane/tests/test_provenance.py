"""A batch says where everything in it came from."""

import msgspec
import numpy as np
import pytest

from art_dataplane import (
    AdvantageRule,
    Lease,
    LossWeightRule,
    Outcome,
    PackedBatchRef,
    PackingRequest,
    PackingResult,
    Selection,
    ShmBatchMapper,
    decode,
    encode,
    pack,
    trajectory_ref,
)
from art_dataplane.advantages import OverlongPenalty
from art_dataplane.context_plan import ContextCost, ContextRule, plan_context
from art_dataplane.kl import KlRule

QUEUE_LEASE = Lease("selection-1", 17, "packing-0", 60.0)


def of_generation(exchange, name):
    return msgspec.structs.replace(exchange, adapter_generation=name)


@pytest.fixture
def groups(exchange, record):
    """One group that is packed, one without variance, and a failed record, all of other adapters."""
    return [
        [
            record(
                "a",
                "g0",
                [
                    of_generation(exchange([1, 2], [3], versions=[4]), "step-4"),
                    of_generation(exchange([1, 2, 3, 9], [5, 6], versions=[4, 7]), "step-7"),
                ],
                reward=1.0,
            ),
            record("b", "g0", [of_generation(exchange([1, 2], [4], versions=[2]), "step-4")], reward=0.0),
            record(
                "c",
                "g0",
                [exchange([1, 2], [5], versions=[5]), of_generation(exchange([8], []), "step-no-tokens")],
                reward=0.5,
            ),
            record("d", "g0", [of_generation(exchange([1], [1], versions=[6]), "step-failed")], failed=True),
        ],
        [record(name, "g1", [of_generation(exchange([1], [1]), "step-dropped")]) for name in "ef"],
    ]


def request_for(groups, **fields):
    refs = tuple(tuple(trajectory_ref(each, "owner") for each in group) for group in groups)
    return PackingRequest(Selection(refs, QUEUE_LEASE), 64, 5, 8, **fields)


def test_a_batch_names_its_records_groups_versions_adapters_ticket_and_leases(groups, segments):
    request = request_for(groups)
    assert request.record_ids == tuple("abcdef")
    assert request.group_ids == ("g0", "g1")
    result = pack(groups, request, segments, owner="packing-0", fetch_s=0.25)
    ref = result.ref
    assert (ref.record_ids, ref.group_ids) == (("a", "b", "c"), ("g0",))
    assert ref.versions == (2, 4, 5, 7)
    assert ref.adapter_generations == ("step-4", "step-7")
    assert (ref.ticket, ref.policy_version, ref.objective) == (5, 8, "rl")
    assert ref.selection_lease == QUEUE_LEASE
    assert ref.lease.holder == "trainer"
    assert (result.ticket, result.selection_lease, result.timing) == (5, QUEUE_LEASE, ref.timing)
    assert ref.timing.fetch_s == 0.25
    assert min(ref.timing.plan_s, ref.timing.write_s, ref.timing.context_s) >= 0
    parts = (ref.timing.fetch_s, ref.timing.plan_s, ref.timing.write_s, ref.timing.context_s)
    assert ref.timing.total_s == pytest.approx(sum(parts))
    assert decode(encode(ref), PackedBatchRef) == ref
    segments.release(ref.location, ref.lease, Outcome.CONSUMED)


def test_a_selection_that_gives_no_batch_still_names_its_ticket_and_lease(groups, segments):
    result = pack(groups[1:], request_for(groups[1:]), segments, owner="packing-0")
    assert (result.ref, result.ticket, result.selection_lease) == (None, 5, QUEUE_LEASE)
    assert result.timing.write_s == 0.0


def test_the_rows_of_a_batch_come_with_the_shares_of_context_parallel_ranks(groups, segments):
    rule = ContextRule(2, ContextCost(1.0, 1.0))
    request = request_for(groups, context=rule)
    result = pack(groups, decode(encode(request), PackingRequest), segments, owner="packing-0")
    assert pack(groups, request_for(groups), segments, owner="packing-0").ref.context == ()
    with ShmBatchMapper().map(result.ref) as batch:
        rows = [batch.row(index) for index in range(batch.row_count)]
        assert result.ref.context == tuple(
            plan_context(row["position_ids"], row["subtree_end"], rule) for row in rows
        )
        assert sum(each.token_count for each in result.ref.context) == len(batch.token_ids)
    assert decode(encode(result), PackingResult) == result


def test_every_rule_of_a_request_survives_the_wire_and_reaches_the_batch(exchange, record, segments):
    referenced = msgspec.structs.replace(
        exchange([1], [2, 3], logprobs=[-1.0, -2.0]), reference_logprobs=np.array([-1.5, -2.5], np.float32)
    )
    groups = [[record("a", exchanges=[referenced]), record("b", exchanges=[referenced], reward=0.0)]]
    request = request_for(
        groups,
        advantage=AdvantageRule(
            "batch_std",
            baseline="leave_one_out",
            balance=0.5,
            equal_sums=True,
            unit_magnitude=True,
            overlong=OverlongPenalty(8, 2),
        ),
        loss_weight=LossWeightRule("constant", 4),
        kl=KlRule(0.5, "loss"),
        context=ContextRule(2, ContextCost(1.0, 1.0, 8, 1.0), 2, 4, 64),
    )
    received = decode(encode(request), PackingRequest)
    assert received == request
    result = pack(groups, received, segments, owner="packing-0")
    with ShmBatchMapper().map(result.ref) as batch:
        # Magnitudes are 1 and 0.5 of what they were, and their mean is 1.
        assert sorted(batch.loss_advantage.tolist()) == pytest.approx([-2 / 3, -2 / 3, 4 / 3, 4 / 3])
        assert batch.loss_weight.tolist() == pytest.approx([1 / 8] * 4)
        assert batch.loss_kl_weight.tolist() == pytest.approx([1 / 16] * 4)
        assert sorted(batch.loss_reference_logprob.tolist()) == [-2.5, -2.5, -1.5, -1.5]
    segments.release(result.ref.location, result.ref.lease, Outcome.CONSUMED)
    plain = pack(groups, request_for(groups), segments, owner="packing-0")
    with ShmBatchMapper().map(plain.ref) as batch:
        assert (batch.loss_kl_weight, batch.loss_reference_logprob) == (None, None)
