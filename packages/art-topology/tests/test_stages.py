"""Stages: what always holds, round trips, and hints that work. megatron-core itself is in tests/topology."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology.stages import Stage, StageError, StageLayout, lay_out_stages, parse_layout, stages_of
from art_topology.trainer import MegatronTopologyConfig


@st.composite
def layouts(draw: st.DrawFn) -> StageLayout:
    """Any layout: decoder layers fall where they like, MTP into one of the last stages after them."""
    pp, vpp = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    runs = draw(
        st.lists(st.integers(0, 4), min_size=pp * vpp, max_size=pp * vpp).filter(lambda runs: sum(runs) > 0)
    )
    after = max(i for i, count in enumerate(runs) if count)
    mtp_stage = draw(st.integers(max(after, pp * vpp - pp), pp * vpp - 1))
    mtp = draw(st.integers(0, 3))
    stages, layer = [], 0
    for i, count in enumerate(runs):
        stages.append(
            Stage(
                first_layer=layer,
                layer_count=count,
                embedding=i == 0,
                mtp_layers=mtp if i == mtp_stage else 0,
                loss=i == pp * vpp - 1,
            )
        )
        layer += count
    return StageLayout(stages=tuple(tuple(stages[rank::pp]) for rank in range(pp)))


@given(layouts())
def test_a_layout_string_is_read_back(layout: StageLayout) -> None:
    text = layout.to_layout_string()
    assert parse_layout(text, layout.pp, num_layers=layout.num_layers, mtp=layout.mtp_layers) == layout
    assert len(text) <= len("|".join(stage.symbols for stage in layout.in_order))


@given(layouts())
def test_a_layout_survives_json_and_messagepack(layout: StageLayout) -> None:
    assert msgspec.json.decode(msgspec.json.encode(layout), type=StageLayout) == layout
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(layout), type=StageLayout) == layout


@given(layouts())
def test_every_layer_is_held_once(layout: StageLayout) -> None:
    held = [layer for rank in range(layout.pp) for layer in layout.layers_of(rank)]
    assert sorted(held) == list(range(layout.num_layers))
    for layer in held:
        pp_rank, vpp_rank = layout.place_of(layer)
        assert layer in layout.stages[pp_rank][vpp_rank].layers
    with pytest.raises(IndexError, match=f"layer {layout.num_layers} of a model with {layout.num_layers}"):
        layout.place_of(layout.num_layers)
    with pytest.raises(IndexError, match=f"rank {layout.pp} of a pipeline with {layout.pp}"):
        layout.layers_of(layout.pp)


@settings(max_examples=300)
@given(num_layers=st.integers(1, 60), pp=st.integers(1, 6), vpp=st.integers(1, 4), mtp=st.integers(0, 2))
def test_a_balanced_layout_is_as_even_as_it_can_be(num_layers: int, pp: int, vpp: int, mtp: int) -> None:
    if pp == 1 and vpp > 1:
        with pytest.raises(StageError, match="pp=1 has only one"):
            StageLayout.balanced(num_layers, pp, vpp, mtp=mtp)
        return
    layout = StageLayout.balanced(num_layers, pp, vpp, mtp=mtp)
    assert (layout.num_layers, layout.mtp_layers) == (num_layers, mtp)
    loads = [len(stage.symbols) for stage in layout.in_order]
    # The fullest stage cannot be less full: one by one onto the least full is optimal for equal pieces.
    filled = [0] * (pp * vpp)
    filled[0] += 1
    filled[-1] += 1 + mtp
    for _ in range(num_layers):
        filled[filled.index(min(filled))] += 1
    assert sorted(loads) == sorted(filled)


def test_the_layout_of_megatrons_documentation() -> None:
    layout = parse_layout("Et*3|(tt|)*29,m|L", 16)
    assert (layout.pp, layout.vpp, layout.num_layers, layout.mtp_layers) == (16, 2, 61, 1)
    assert layout.stages[0] == (
        Stage(first_layer=0, layer_count=3, embedding=True),
        Stage(first_layer=33, layer_count=2),
    )
    assert layout.stages[14][1] == Stage(first_layer=61, layer_count=0, mtp_layers=1)
    assert layout.stages[15][1] == Stage(first_layer=61, layer_count=0, loss=True)
    assert (layout.mtp_pp_rank, layout.mtp_standalone) == (14, True)
    assert layout.layers_of(0) == (0, 1, 2, 33, 34)
    assert layout.place_of(34) == (0, 1)
    assert layout.to_layout_string() == "Et*3|(tt|)*29m|L"


def test_stages_are_interleaved() -> None:
    layout = StageLayout.uniform(8, 2, 2)
    assert [layout.layers_of(rank) for rank in range(2)] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert layout.stages[1][1].loss
    assert not layout.mtp_standalone
    assert layout.mtp_pp_rank is None


def test_embedding_and_loss_may_count_as_layers() -> None:
    layout = StageLayout.uniform(14, 4, account_for_embedding=True, account_for_loss=True, mtp=1)
    assert [stage.symbols for (stage,) in layout.stages] == ["Ettt", "tttt", "tttt", "tttmL"]


def test_the_ends_may_be_of_another_size() -> None:
    layout = StageLayout.uniform(22, 4, 2, first_stage_layers=4, last_stage_layers=2)
    assert [len(layout.layers_of(rank)) for rank in range(4)] == [4, 8, 8, 2]
    assert layout.layers_of(1) == (2, 3, 4, 5, 13, 14, 15, 16)


@given(
    num_layers=st.integers(1, 40),
    pp=st.integers(1, 6),
    vpp=st.integers(1, 3),
    options=st.fixed_dictionaries(
        {},
        optional={
            "account_for_embedding": st.booleans(),
            "account_for_loss": st.booleans(),
            "first_stage_layers": st.integers(-1, 50),
            "last_stage_layers": st.integers(-1, 50),
        },
    ),
    mtp=st.integers(0, 2),
)
@settings(max_examples=1500)
def test_the_value_in_a_hint_works(
    num_layers: int, pp: int, vpp: int, options: dict[str, Any], mtp: int
) -> None:
    try:
        StageLayout.uniform(num_layers, pp, vpp, **options, mtp=mtp)
    except StageError as error:
        refused = error
    else:
        return
    arguments: dict[str, Any] = {"pp": pp, "vpp": vpp, "mtp": mtp, **options}
    fields = {
        "num_layers_in_first_pipeline_stage": "first_stage_layers",
        "num_layers_in_last_pipeline_stage": "last_stage_layers",
    }
    values = {
        fields.get(name, name): int(value) for name, value in re.findall(r"use (\w+)=(\d+)", refused.hint)
    }
    layout = re.search(r"pipeline_layout = '([^']+)'", refused.hint)
    assert str(refused) == f"{refused.message}; {refused.hint}"
    if values:
        lay_out_stages(num_layers, **arguments | values)
    if layout:
        found = lay_out_stages(num_layers, pp, vpp, mtp=mtp, pipeline_layout=layout[1])
        assert found.num_layers == num_layers
    if not values and not layout:
        assert refused.hint in {
            "set pp above 1, or leave vpp out",
            "leave both out",
            "leave it out",
            "leave the one or the other out",
        }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": 30, "pp": 4}, "30 layers cannot be divided among pp=4 stages; use pp=3, or divide"),
        (
            {"num_layers": 29, "pp": 4, "account_for_embedding": True},
            "29 layers + embedding = 30 cannot be divided among pp=4 stages",
        ),
        (
            {"num_layers": 32, "pp": 4, "vpp": 3},
            "32 layers are 8 for each of pp=4 ranks, which cannot be divided into vpp=3 virtual stages; "
            "use vpp=2",
        ),
        (
            {"num_layers": 30, "pp": 4, "first_stage_layers": 5},
            "besides num_layers_in_first_pipeline_stage=5, 25 of 30 layers are to be divided among 3 stages; "
            "use num_layers_in_first_pipeline_stage=6",
        ),
        (
            {"num_layers": 32, "pp": 4, "vpp": 2, "last_stage_layers": 5},
            "num_layers_in_last_pipeline_stage=5 cannot be divided into vpp=2 virtual stages; use "
            "num_layers_in_last_pipeline_stage=2",
        ),
        ({"num_layers": 4, "pp": 1, "first_stage_layers": 3}, "with pp=1 the only stage holds all 4 layers"),
        (
            {"num_layers": 9, "pp": 2, "first_stage_layers": 4, "last_stage_layers": 4},
            "place 8 layers, but the model has 9; use num_layers_in_first_pipeline_stage=5",
        ),
        (
            {"num_layers": 8, "pp": 4, "first_stage_layers": 2, "account_for_loss": True},
            "embedding and loss cannot count as layers too",
        ),
        ({"num_layers": 0, "pp": 4}, "num_layers=0 is below 1"),
        ({"num_layers": 8, "pp": 2, "mtp": -1}, "mtp=-1 is below 0"),
        ({"num_layers": 8, "pp": 2**40}, "pp=1099511627776 is above 1,000,000"),
        ({"num_layers": 8, "pp": 2000, "vpp": 2000}, "pp*vpp = 2000*2000 is above 1,000,000 stages"),
        ({"num_layers": 8, "pp": 1, "vpp": 2}, "vpp=2 interleaves pipeline stages, but pp=1 has only one"),
        (
            {"num_layers": 8, "pp": 2, "pipeline_layout": "Et*4|t*4L", "account_for_loss": True},
            "so account_for_loss_in_pipeline_split=True cannot be given too",
        ),
        (
            {"num_layers": 8, "pp": 2, "vpp": 2, "pipeline_layout": "Et*4|t*4L"},
            "the layout has 2 stages, 1 for each of pp=2 ranks, but vpp=2; use vpp=1 or leave it out, or "
            "write 4 stages",
        ),
        (
            {"num_layers": 8, "pp": 3, "pipeline_layout": "Et*4|t*4L"},
            "the layout has 2 stages, which is no multiple of pp=3; write 3 stages",
        ),
        (
            {"num_layers": 9, "pp": 2, "pipeline_layout": "Et*4|t*4L"},
            "the layout places 8 decoder layers, but the model has 9; write 9 times 't', as in 'Et*5|t*4L'",
        ),
        (
            {"num_layers": 8, "pp": 2, "mtp": 1, "pipeline_layout": "Et*4|t*4L"},
            "the layout places 0 multi-token prediction layers, but the model has 1; write 1 times 'm'",
        ),
        ({"num_layers": 2, "pp": 2, "pipeline_layout": "tt|L"}, "has the embedding ('E') 0 times"),
        ({"num_layers": 2, "pp": 2, "pipeline_layout": "Et|tLL"}, "has the loss ('L') 2 times"),
        ({"num_layers": 2, "pp": 3, "pipeline_layout": "|Ett|L"}, "('E') stands in stage 1 of 3"),
        ({"num_layers": 2, "pp": 3, "pipeline_layout": "Et|tL|"}, "('L') stands in stage 1 of 3"),
        ({"num_layers": 2, "pp": 2, "pipeline_layout": "tE|tL"}, "a layer stands before the embedding"),
        ({"num_layers": 1, "pp": 2, "pipeline_layout": "E|L"}, "the layout has no decoder layer"),
        ({"num_layers": 2, "pp": 2, "pipeline_layout": "Etm|tL"}, "after a multi-token prediction layer"),
        (
            {"num_layers": 2, "pp": 2, "mtp": 2, "pipeline_layout": "Ettm|mL"},
            "the 2 multi-token prediction layers are spread over 2 stages",
        ),
        (
            {"num_layers": 2, "pp": 2, "mtp": 1, "pipeline_layout": "Et|tm||L"},
            "stand in virtual stage 0 of rank 1; megatron-core has them only in the last of a rank's 2; "
            "write 'm' into one of the last 2 stages",
        ),
        (
            {"num_layers": 2, "pp": 1, "pipeline_layout": "E tt L"},
            "' ' in the layout 'E tt L': it is no part",
        ),
        ({"num_layers": 2, "pp": 1, "pipeline_layout": "E(tt)L"}, "parentheses must hold something, stand"),
        ({"num_layers": 4, "pp": 1, "pipeline_layout": "E((t)*2)*2L"}, "not one in another"),
        ({"num_layers": 2, "pp": 1, "pipeline_layout": "E()*2ttL"}, "parentheses must hold something"),
        ({"num_layers": 2, "pp": 1, "pipeline_layout": "E*t"}, "'*' in the layout 'E*t': it repeats nothing"),
        ({"num_layers": 6, "pp": 1, "pipeline_layout": "Et*3*2L"}, "what is already repeated"),
        ({"num_layers": 6, "pp": 1, "pipeline_layout": "Et*999999999L"}, "'999999999' times; use at most"),
        ({"num_layers": 6, "pp": 1, "pipeline_layout": "E(t*9999)*9999L"}, "for more than 1,000,000 letters"),
    ],
)
def test_refusals_have_the_numbers_and_what_works(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(StageError, match=re.escape(message)):
        lay_out_stages(**arguments)


@settings(max_examples=500)
@given(text=st.text("EtmL|*(),0123 \n", max_size=40), pp=st.integers(1, 4))
def test_any_text_is_read_or_refused(text: str, pp: int) -> None:
    try:
        layout = parse_layout(text, pp)
    except StageError as error:
        refused = error
    else:
        assert parse_layout(layout.to_layout_string(), pp) == layout
        return
    assert refused.field == "pipeline_layout"
    assert refused.hint


def test_stages_follow_the_topology() -> None:
    parallel = MegatronTopologyConfig(pp=4, vpp=2, num_layers_in_first_pipeline_stage=2)
    assert stages_of(parallel, 14, mtp=1) == StageLayout.uniform(14, 4, 2, first_stage_layers=2, mtp=1)
    parallel = MegatronTopologyConfig(pp=2, pipeline_layout="Ett|tttL")
    assert [stage.symbols for (stage,) in stages_of(parallel, 5).stages] == ["Ett", "tttL"]
    parallel = MegatronTopologyConfig(
        pp=3, account_for_embedding_in_pipeline_split=True, account_for_loss_in_pipeline_split=True
    )
    assert [len(stages_of(parallel, 7).layers_of(rank)) for rank in range(3)] == [2, 3, 2]
    with pytest.raises(StageError) as refused:
        stages_of(MegatronTopologyConfig(pp=3, num_layers_in_last_pipeline_stage=2), 9)
    assert refused.value.field == "num_layers_in_last_pipeline_stage"


def stage(first_layer: int, layer_count: int, **fields: Any) -> Stage:
    return Stage(first_layer=first_layer, layer_count=layer_count, **fields)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((), "a stage layout without a stage"),
        (((), ()), "a stage layout without a stage"),
        (
            ((stage(0, 1, embedding=True), stage(1, 1)), (stage(2, 1, loss=True),)),
            "the pipeline ranks have [1, 2] virtual stages",
        ),
        (
            ((stage(0, 1, embedding=True),), (stage(2, 1, loss=True),)),
            "begins with layer 2, but the stages before it hold the layers below 1; begin it with layer 1",
        ),
        (((stage(0, -1, embedding=True),), (stage(0, 1, loss=True),)), "stage 0 holds -1 decoder"),
        (((stage(0, 1),), (stage(1, 1, loss=True),)), "the embedding ('E') 0 times"),
    ],
)
def test_what_always_holds_is_checked(stages: Any, message: str) -> None:
    with pytest.raises(StageError, match=re.escape(message)):
        StageLayout(stages=stages)


def test_a_layout_that_breaks_the_rules_is_not_decoded() -> None:
    data = msgspec.to_builtins(StageLayout.uniform(4, 2))
    data["stages"][1][0]["first_layer"] = 3
    with pytest.raises(msgspec.ValidationError, match="begin it with layer 2"):
        msgspec.convert(data, StageLayout)
