"""Stages hold the layers that megatron-core builds there, and what it refuses is refused."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from art_topology.stages import StageError, StageLayout, lay_out_stages, parse_layout

LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def megatron_reads(text: str, pp: int) -> Any:
    """Its own reading, validated for as many layers as it has; what it refuses raises AssertionError."""
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    layout = PipelineParallelLayerLayout(text, pp)
    counts = {letter: layout.flatten_layout.count(LayerType[name]) for name, letter in LETTERS.items()}
    assert counts["t"] >= 1
    layout.validate_layer_layout(counts["t"], counts["m"])
    return layout


def letters(layout: Any) -> list[list[str]]:
    return [["".join(LETTERS[kind.name] for kind in stage) for stage in row] for row in layout.layout]


def random_notation(rng: random.Random, symbols: str) -> str:
    """One of the many ways to write the same symbols: repetitions written short, commas anywhere."""
    parts: list[str] = []
    position = 0
    while position < len(symbols):
        length = rng.randint(1, 4)
        unit = symbols[position : position + length]
        times = 1
        while symbols.startswith(unit, position + times * len(unit)):
            times += 1
        times = rng.randint(1, times)
        if len(unit) == 1 and rng.random() < 0.6:
            parts.append(f"{unit}*{times}")
        elif times > 1 or rng.random() < 0.2:
            parts.append(f"({random_letters(rng, unit)})*{times}")
        else:
            parts.append(unit)
        position += times * len(unit)
        parts.append(rng.choice(("", "", ",")))
    return "".join(parts)


def random_letters(rng: random.Random, unit: str) -> str:
    run = len(unit) - len(unit.lstrip(unit[0]))
    return f"{unit[0]}*{run}{unit[run:]}" if rng.random() < 0.3 else unit


def random_symbols(rng: random.Random) -> str:
    """Stages that are mostly in order; sometimes something is put in the wrong place."""
    stages = [[] for _ in range(rng.randint(1, 12))]
    for letter, count in (("t", rng.randint(1, 20)), ("m", rng.choice((0, 0, 1, 2)))):
        for at in sorted(rng.randrange(len(stages)) for _ in range(count)):
            stages[at if letter == "t" else rng.choice((at, len(stages) - 1, -2 % len(stages)))].append(
                letter
            )
    stages[0].insert(0, "E")
    stages[-1].append("L")
    text = "|".join("".join(stage) for stage in stages)
    if rng.random() < 0.3:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice("EtmL|") + text[at + rng.randint(0, 1) :]
    return text


def test_layout_strings_are_read_as_megatron_reads_them() -> None:
    rng = random.Random(0)
    accepted = refused = 0
    for _ in range(2500):
        symbols = random_symbols(rng)
        pp = rng.randint(1, 6)
        if rng.random() < 0.7:
            pp = rng.choice([d for d in range(1, 13) if (symbols.count("|") + 1) % d == 0])
        text = random_notation(rng, symbols)
        stages = symbols.split("|")
        try:
            expected = megatron_reads(text, pp)
        except AssertionError:
            expected = None
        # It builds the embedding in the first and the loss in the last stage, wherever the layout has them.
        elsewhere = "E" not in stages[0] or "L" not in stages[-1]
        try:
            found = parse_layout(text, pp)
        except StageError:
            refused += 1
            assert expected is None or elsewhere, (text, pp)
            continue
        accepted += 1
        assert expected is not None, (text, pp)
        assert [[stage.symbols for stage in row] for row in found.stages] == letters(expected)
        assert found.vpp == expected.virtual_pipeline_model_parallel_size
        again = megatron_reads(found.to_layout_string(), pp)
        assert letters(again) == letters(expected)
        assert parse_layout(found.to_layout_string(), pp) == found
    assert accepted > 700
    assert refused > 300


def test_what_is_read_from_damaged_text_is_what_megatron_reads() -> None:
    rng = random.Random(1)
    accepted = 0
    for _ in range(6000):
        text = list(random_notation(rng, random_symbols(rng)))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(text))
            text[at : at + rng.randint(0, 1)] = rng.choice("EtmL|()*0123,, x")
        written = "".join(text)
        try:
            found = parse_layout(written, 1)
        except StageError:
            continue
        accepted += 1
        assert [[stage.symbols for stage in row] for row in found.stages] == letters(
            megatron_reads(written, 1)
        ), written
    assert accepted > 100


@pytest.mark.parametrize(
    ("text", "read_as"),
    [("E(tt)*2*3L", "EttttttL"), ("E(*2t)*2L", "EEtttL"), ("Et*(2)*2L", "E" + "t" * 22 + "L")],
)
def test_what_megatron_expands_by_accident_is_refused(text: str, read_as: str) -> None:
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    (held,) = PipelineParallelLayerLayout.parse_str_to_list(text)
    assert "".join(LETTERS[kind.name] for kind in held) == read_as
    with pytest.raises(StageError, match="in the layout"):
        parse_layout(text, 1)


def test_layers_of_a_layout_are_those_that_megatron_builds(megatron_stage: Callable) -> None:
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.multi_token_prediction import get_mtp_num_layers_to_build, get_mtp_ranks
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    rng = random.Random(2)
    compared = 0
    while compared < 300:
        symbols = random_symbols(rng)
        pp = rng.choice([d for d in range(1, 13) if (symbols.count("|") + 1) % d == 0])
        try:
            found = parse_layout(symbols, pp)
        except StageError:
            continue
        if pp == 1 and found.vpp > 1:
            continue
        compared += 1
        vpp = found.vpp if found.vpp > 1 else None
        config = transformer_config(
            num_layers=found.num_layers,
            pipeline_model_parallel_size=pp,
            virtual_pipeline_model_parallel_size=vpp,
            pipeline_model_parallel_layout=symbols,
            mtp_num_layers=found.mtp_layers or None,
        )
        assert config.mtp_standalone == found.mtp_standalone
        assert set(get_mtp_ranks(list(range(pp)), config)) == {found.mtp_pp_rank} - {None}
        for pp_rank, row in enumerate(found.stages):
            with megatron_stage(pp_rank=pp_rank, pp=pp, vpp=vpp):
                for vpp_rank, stage in enumerate(row):
                    at = vpp_rank if vpp else None
                    offset = get_transformer_layer_offset(config, at)
                    built = get_num_layers_to_build(config, at)
                    assert stage.layers == range(offset, offset + built)
                    assert stage.mtp_layers == get_mtp_num_layers_to_build(config, at)
                    ids = config.pipeline_model_parallel_layout.get_layer_id_list(LayerType.decoder, at)
                    assert list(stage.layers) == ids
                    for layer in ids:
                        assert found.place_of(layer) == (pp_rank, vpp_rank)


def transformer_config(**fields: Any) -> Any:
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(hidden_size=8, num_attention_heads=1, pipeline_dtype=torch.float32, **fields)


def megatron_divides(
    stand_at: Callable, num_layers: int, pp: int, vpp: int | None, mtp: int, options: dict[str, Any]
) -> list[list[tuple[range, int]]] | str:
    """The layers and MTP layers of every stage, or why there are none or none that make a model.

    ``vpp`` 1 becomes None, as the compiler makes it.
    """
    from megatron.core.transformer.multi_token_prediction import get_mtp_num_layers_to_build
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    vpp = None if vpp == 1 else vpp
    try:
        config = transformer_config(
            num_layers=num_layers,
            pipeline_model_parallel_size=pp,
            virtual_pipeline_model_parallel_size=vpp,
            mtp_num_layers=mtp or None,
            **options,
        )
        stages = []
        for pp_rank in range(pp):
            with stand_at(pp_rank=pp_rank, pp=pp, vpp=vpp):
                row = []
                for vpp_rank in range(vpp or 1):
                    at = vpp_rank if vpp else None
                    offset = get_transformer_layer_offset(config, at)
                    count = get_num_layers_to_build(config, at)
                    row.append((range(offset, offset + count), get_mtp_num_layers_to_build(config, at)))
                stages.append(row)
    except (AssertionError, ValueError, ZeroDivisionError) as error:
        return repr(error)
    in_order = [row[vpp_rank][0] for vpp_rank in range(vpp or 1) for row in stages]
    if min(layers.stop - layers.start for layers in in_order) < 0:
        return "a negative number of layers"
    if [layer for layers in in_order for layer in layers] != list(range(num_layers)):
        return "not every layer once and in order"
    return stages


OPTIONS = {
    "account_for_embedding": "account_for_embedding_in_pipeline_split",
    "account_for_loss": "account_for_loss_in_pipeline_split",
    "first_stage_layers": "num_layers_in_first_pipeline_stage",
    "last_stage_layers": "num_layers_in_last_pipeline_stage",
}


def random_division(rng: random.Random) -> tuple[int, int, int | None, dict[str, Any]]:
    pp, vpp = rng.randint(1, 6), rng.choice((None, None, 1, 2, 3))
    options: dict[str, Any] = {}
    kind = rng.choice(("even", "accounts", "ends", "ends", "anything"))
    if kind in ("accounts", "anything"):
        options["account_for_embedding"] = rng.random() < 0.6
        options["account_for_loss"] = rng.random() < 0.6
    if kind in ("ends", "anything"):
        for name in ("first_stage_layers", "last_stage_layers"):
            if rng.random() < 0.6:
                options[name] = rng.choice((rng.randint(0, 9), rng.randint(1, 4) * (vpp or 1)))
    num_layers = rng.randint(1, 40)
    if rng.random() < 0.6:  # mostly what divides
        ends = [options[name] for name in ("first_stage_layers", "last_stage_layers") if name in options]
        units = max(pp - len(ends), 0) * (vpp or 1) * rng.randint(1, 3) + sum(ends)
        units -= bool(options.get("account_for_embedding")) + bool(options.get("account_for_loss"))
        num_layers = units if units >= 1 else num_layers
    return num_layers, pp, vpp, options


def test_uniform_stages_are_those_that_megatron_builds(megatron_stage: Callable) -> None:
    rng = random.Random(3)
    accepted = refused = 0
    for _ in range(6000):
        num_layers, pp, vpp, options = random_division(rng)
        mtp = rng.choice((0, 0, 1, 2))
        expected = megatron_divides(
            megatron_stage,
            num_layers,
            pp,
            vpp,
            mtp,
            {OPTIONS[name]: value for name, value in options.items()},
        )
        try:
            found = StageLayout.uniform(num_layers, pp, vpp, **options, mtp=mtp)
        except StageError:
            refused += 1
            # With one stage and both ends given it subtracts both, and may arrive at a model by accident.
            both = pp == 1 and {"first_stage_layers", "last_stage_layers"} <= set(options)
            assert both or isinstance(expected, str), (num_layers, pp, vpp, options)
            continue
        accepted += 1
        built = [[(stage.layers, stage.mtp_layers) for stage in row] for row in found.stages]
        assert built == expected, (num_layers, pp, vpp, options)
    assert accepted > 1500
    assert refused > 1500


def test_the_layout_string_of_a_uniform_division_builds_the_same(megatron_stage: Callable) -> None:
    rng = random.Random(4)
    compared = 0
    while compared < 500:
        num_layers, pp, vpp, options = random_division(rng)
        try:
            found = StageLayout.uniform(num_layers, pp, vpp, **options)
        except StageError:
            continue
        compared += 1
        text = found.to_layout_string()
        layout = {"pipeline_model_parallel_layout": text}
        assert megatron_divides(megatron_stage, num_layers, pp, vpp, 0, layout) == [
            [(stage.layers, 0) for stage in row] for row in found.stages
        ]
        assert lay_out_stages(num_layers, pp, vpp, pipeline_layout=text) == found


def test_megatron_fails_at_first_and_last_without_a_stage_between_them(megatron_stage: Callable) -> None:
    """When this fails megatron-core has mended it, and the refusal in ``stage_division`` can go."""
    ends = {"num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 4}
    assert "ZeroDivisionError" in megatron_divides(megatron_stage, 8, 2, 2, 0, ends)
    assert isinstance(megatron_divides(megatron_stage, 8, 2, None, 0, ends), list)
    with pytest.raises(
        StageError, match="leave num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage out"
    ):
        StageLayout.uniform(8, 2, 2, first_stage_layers=4, last_stage_layers=4)
    assert StageLayout.uniform(8, 2, 2, first_stage_layers=4).layers_of(1) == (2, 3, 6, 7)
