"""Every process group, member for member, is the one that megatron-core builds."""

import random
from collections.abc import Callable
from itertools import permutations
from math import prod

import pytest

from art_topology import GROUP_FAMILIES, GroupFamily, RankLayout

FAMILIES: dict[str, GroupFamily] = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "DATA_PARALLEL_GROUP": "dp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp-cp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp-dp",
    "MODEL_PARALLEL_GROUP": "tp-pp",
    "DATA_PARALLEL_GROUP_WITH_CP": "cp-dp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp-cp-dp",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_DATA_PARALLEL_GROUP": "expert-dp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "etp-ep",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "etp-ep-pp",
    "EMBEDDING_GROUP": "embedding",
    "POSITION_EMBEDDING_GROUP": "position-embedding",
}
ALONE = {"GTP_WEIGHT_REMAT_GROUP", "EXPERT_GTP_WEIGHT_REMAT_GROUP"}
"""Groups of one rank each: rematerialized weights are not divided."""

ORDERS = ["-".join(order) for order in permutations(("tp", "cp", "ep", "dp", "pp"))]
MOST_RANKS = 64


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def random_layout(rng: random.Random, **fields: str) -> RankLayout:
    while True:
        tp, cp, dp, pp = (rng.choice((1, 1, 2, 2, 3, 4, 5)) for _ in range(4))
        if tp * cp * dp * pp <= MOST_RANKS:
            break
    stage = tp * cp * dp
    etp = rng.choice(divisors(stage))
    ep = rng.choice(divisors(stage // etp))
    return RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, etp=etp, ep=ep, expert_dp=stage // etp // ep, **fields)


def arguments(layout: RankLayout) -> dict[str, object]:
    return {
        "tensor_model_parallel_size": layout.tp,
        "context_parallel_size": layout.cp,
        "pipeline_model_parallel_size": layout.pp,
        "expert_tensor_parallel_size": layout.etp,
        "expert_model_parallel_size": layout.ep,
        "order": layout.order,
    }


def assert_equal(layout: RankLayout, built: dict[str, list[list[int]]]) -> None:
    for description, family in FAMILIES.items():
        groups = list(layout.groups(family))
        assert [list(group) for group in groups] == built[description], (layout, family)
        assert len(groups) == layout.group_count(family)
    same = "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP"
    assert built[f"{same}_WITH_EGTP"] == built[same]
    assert all(len(group) == 1 for description in ALONE for group in built[description])


def test_every_family_is_compared() -> None:
    assert set(FAMILIES.values()) == set(GROUP_FAMILIES)


def test_two_thousand_random_layouts_have_megatrons_groups(megatron_groups: Callable) -> None:
    rng = random.Random(0)
    known = {*FAMILIES, *ALONE, "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP_WITH_EGTP"}
    known.add("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP")
    for _ in range(2000):
        layout = random_layout(rng)
        built = megatron_groups(layout.world_size, **arguments(layout))
        assert set(built) == known
        assert_equal(layout, built)
        (everyone,) = built["INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP"]
        assert sorted(everyone) == list(layout.optimizer_instance(0, 1))


def test_a_rank_is_in_the_groups_that_megatron_puts_it_in(megatron_groups: Callable) -> None:
    rng = random.Random(1)
    for _ in range(200):
        layout = random_layout(rng)
        built = megatron_groups(layout.world_size, **arguments(layout))
        rank = rng.randrange(layout.world_size)
        expected = {
            family: [ranks for ranks in built[description] if rank in ranks]
            for description, family in FAMILIES.items()
        }
        found = layout.groups_of(rank)
        assert {family: [list(group)] for family, group in found.items()} == {
            family: groups for family, groups in expected.items() if groups
        }
        for family, group in found.items():
            assert group.index(rank) == expected[family][0].index(rank)


def test_other_orders_give_megatrons_groups_or_are_refused_by_both(megatron_groups: Callable) -> None:
    rng = random.Random(2)
    accepted = refused = 0
    for _ in range(2000):
        usual = random_layout(rng)
        order = rng.choice(ORDERS)
        sizes = {name: getattr(usual, name) for name in ("tp", "cp", "dp", "pp", "etp", "ep", "expert_dp")}
        try:
            layout = RankLayout(**sizes, order=order)
        except ValueError:
            refused += 1
            with pytest.raises(AssertionError):
                megatron_groups(usual.world_size, **arguments(usual) | {"order": order})
            continue
        accepted += 1
        assert_equal(layout, megatron_groups(layout.world_size, **arguments(layout)))
    assert accepted > 500
    assert refused > 200


def test_hierarchical_context_parallel_groups_are_megatrons(megatron_groups: Callable) -> None:
    rng = random.Random(3)
    for _ in range(200):
        sizes = [rng.choice((1, 2, 3, 4)) for _ in range(rng.choice((1, 2, 3)))]
        tp, dp, pp, cp = rng.choice((1, 2)), rng.choice((1, 2, 3)), rng.choice((1, 2)), prod(sizes)
        layout = RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, etp=1, ep=1, expert_dp=tp * cp * dp)
        built = megatron_groups(
            layout.world_size, **arguments(layout), hierarchical_context_parallel_sizes=sizes
        )
        for rank in range(layout.world_size):
            group = layout.group("cp", rank)
            assert group is not None
            for level in range(len(sizes)):
                made = built[f"HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{level}"]
                assert list(group.level(rank, sizes, level)) == next(ranks for ranks in made if rank in ranks)


def test_optimizer_instances_are_megatrons(megatron_groups: Callable) -> None:
    rng = random.Random(4)
    compared = 0
    while compared < 200:
        layout = random_layout(rng)
        possible = [n for n in divisors(layout.expert_dp) if n > 1 and layout.cp * layout.dp % n == 0]
        if not possible:
            continue
        compared += 1
        instances = rng.choice(possible)
        built = megatron_groups(
            layout.world_size, **arguments(layout), num_distributed_optimizer_instances=instances
        )
        rank = rng.randrange(layout.world_size)

        def of_rank(
            description: str, rank: int = rank, built: dict[str, list[list[int]]] = built
        ) -> list[int]:
            return sorted(next(ranks for ranks in built[description] if rank in ranks))

        dense, expert = layout.group("cp-dp", rank), layout.group("expert-dp", rank)
        assert dense is not None
        assert expert is not None
        shard = (len(dense) // instances, instances)
        assert list(dense.level(rank, shard, 0)) == of_rank("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP")
        shard = (len(expert) // instances, instances)
        for level in (0, 1):
            found = expert.level(rank, shard, level)
            assert list(found) == of_rank(f"HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L{level}")
        instance = layout.optimizer_instance(rank, instances)
        assert list(instance) == of_rank("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP")


def test_hybrid_context_parallel_groups_are_megatrons(megatron_groups: Callable) -> None:
    for tp, cp, dp, pp in ((1, 4, 4, 1), (2, 8, 2, 2), (3, 16, 1, 2), (2, 1, 8, 1)):
        layout = RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, etp=1, ep=1, expert_dp=tp * cp * dp)
        built = megatron_groups(layout.world_size, **arguments(layout), hybrid_context_parallel=True)
        sizes = [size for size in (2, 4, 8) if size < cp * dp]
        assert {f"HYBRID_DP_CP_GROUP_{size}" for size in sizes} == {d for d in built if "HYBRID" in d}
        for size in sizes:
            for ranks in built[f"HYBRID_DP_CP_GROUP_{size}"]:
                group = layout.group("cp-dp", ranks[0])
                assert group is not None
                assert list(group.level(ranks[0], (size, len(group) // size), 0)) == ranks
