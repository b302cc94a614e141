"""Which layers each pipeline stage holds, and where embedding, multi-token prediction and loss stand.

The decoder layers of a model are cut into ``pp * vpp`` runs. Rank ``p`` of a pipeline holds ``vpp`` of them;
a microbatch passes them in the order virtual stage by virtual stage, within it rank by rank (megatron-core's
interleaved schedule). What always holds of a :class:`StageLayout`:

- every layer is held once, in order: each run begins where the one before it in the microbatch's order ends
- the embedding stands at the very beginning, the loss at the very end
- all multi-token prediction (MTP) layers stand together, after the last decoder layer, in the last virtual
  stage of their rank

Sources: ``megatron.core.transformer.pipeline_parallel_layer_layout`` for the strings,
``transformer_block.get_num_layers_to_build`` and ``TransformerConfig.__post_init__`` for the rest.
"""

from collections.abc import Iterator

import msgspec

from art_topology.stage_division import balance, divide, stage_symbols
from art_topology.stage_strings import StageError, read_stages, write_stages
from art_topology.trainer import MegatronTopologyConfig

__all__ = [
    "Stage",
    "StageError",
    "StageLayout",
    "lay_out_stages",
    "parse_layout",
    "stages_of",
]


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """What one virtual stage holds; a stage may hold nothing.

    Args:
        first_layer: The first decoder layer, counted from 0; with no layer, where the next stage begins.
        layer_count: How many decoder layers.
        embedding: Whether it embeds the tokens.
        mtp_layers: How many multi-token prediction layers.
        loss: Whether it computes logits and loss.
    """

    first_layer: int
    layer_count: int
    embedding: bool = False
    mtp_layers: int = 0
    loss: bool = False

    @property
    def layers(self) -> range:
        """The decoder layers, counted from 0."""
        return range(self.first_layer, self.first_layer + self.layer_count)

    @property
    def symbols(self) -> str:
        """What it holds in megatron-core's letters: E, t, m and L."""
        return "E" * self.embedding + "t" * self.layer_count + "m" * self.mtp_layers + "L" * self.loss


class StageLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The stages of a pipeline: ``stages[pp_rank][vpp_rank]``.

    Args:
        stages: A tuple for each pipeline rank with one :class:`Stage` for each of its virtual stages.

    Raises:
        StageError: something that always holds (see the module) does not.
    """

    stages: tuple[tuple[Stage, ...], ...]

    def __post_init__(self) -> None:
        _check_shape(self.stages)
        _check_contents(self)

    @property
    def pp(self) -> int:
        """How many pipeline ranks there are."""
        return len(self.stages)

    @property
    def vpp(self) -> int:
        """How many virtual stages each rank holds; 1 without interleaving."""
        return len(self.stages[0])

    @property
    def num_layers(self) -> int:
        """How many decoder layers all stages hold."""
        return sum(stage.layer_count for stage in self.in_order)

    @property
    def mtp_layers(self) -> int:
        """How many multi-token prediction layers there are."""
        return sum(stage.mtp_layers for stage in self.in_order)

    @property
    def mtp_pp_rank(self) -> int | None:
        """The pipeline rank that holds the multi-token prediction layers; None if there are none."""
        return next(
            (rank for rank, row in enumerate(self.stages) if any(stage.mtp_layers for stage in row)), None
        )

    @property
    def mtp_standalone(self) -> bool:
        """Whether multi-token prediction stands on another rank than the loss (megatron-core's word)."""
        return self.mtp_pp_rank not in (None, self.pp - 1)

    @property
    def in_order(self) -> Iterator[Stage]:
        """All stages in the order in which a microbatch passes them."""
        return (row[vpp_rank] for vpp_rank in range(self.vpp) for row in self.stages)

    def layers_of(self, pp_rank: int) -> tuple[int, ...]:
        """The decoder layers of one pipeline rank, ascending, counted from 0.

        Raises:
            IndexError: there is no such rank.
        """
        return tuple(layer for stage in self.rank(pp_rank) for layer in stage.layers)

    def rank(self, pp_rank: int) -> tuple[Stage, ...]:
        """The virtual stages of one pipeline rank.

        Raises:
            IndexError: there is no such rank.
        """
        if not 0 <= pp_rank < self.pp:
            raise IndexError(f"pipeline rank {pp_rank} of a pipeline with {self.pp} ranks")
        return self.stages[pp_rank]

    def place_of(self, layer: int) -> tuple[int, int]:
        """The pipeline rank and the virtual stage that hold a decoder layer, all counted from 0.

        Raises:
            IndexError: there is no such layer.
        """
        for pp_rank, row in enumerate(self.stages):
            for vpp_rank, stage in enumerate(row):
                if layer in stage.layers:
                    return pp_rank, vpp_rank
        raise IndexError(f"layer {layer} of a model with {self.num_layers} layers")

    def to_layout_string(self) -> str:
        """As megatron-core's ``pipeline_model_parallel_layout``, with repetitions written short."""
        return write_stages([stage.symbols for stage in self.in_order])

    @classmethod
    def uniform(
        cls,
        num_layers: int,
        pp: int,
        vpp: int | None = None,
        *,
        account_for_embedding: bool = False,
        account_for_loss: bool = False,
        first_stage_layers: int | None = None,
        last_stage_layers: int | None = None,
        mtp: int = 0,
    ) -> "StageLayout":
        """As megatron-core divides the layers without a layout string.

        Args:
            num_layers: Decoder layers of the model.
            pp: Pipeline ranks.
            vpp: Virtual stages of each rank; None or 1 means none.
            account_for_embedding: Counts the embedding as one layer of the first stage.
            account_for_loss: Counts the loss as one layer of the last stage.
            first_stage_layers: Layers of the first rank, all its virtual stages together.
            last_stage_layers: Layers of the last rank, likewise.
            mtp: Multi-token prediction layers, which stand before the loss.

        Raises:
            StageError: the layers cannot be divided so; the hint has a value that works.
        """
        runs = divide(
            num_layers=num_layers,
            pp=pp,
            vpp=1 if vpp is None else vpp,
            mtp=mtp,
            account_for_embedding=account_for_embedding,
            account_for_loss=account_for_loss,
            first_stage_layers=first_stage_layers,
            last_stage_layers=last_stage_layers,
        )
        return cls._of_symbols(stage_symbols(runs, mtp), pp)

    @classmethod
    def balanced(cls, num_layers: int, pp: int, vpp: int | None = None, *, mtp: int = 0) -> "StageLayout":
        """As evenly as any number of layers can be divided: what :meth:`uniform` refuses, this divides.

        Embedding, multi-token prediction (as ``mtp`` layers) and loss count as a layer each, so the stages
        at the ends hold fewer decoder layers. Stages differ by at most one of these units.

        Raises:
            StageError: a number is below its least.
        """
        runs = balance(num_layers=num_layers, pp=pp, vpp=1 if vpp is None else vpp, mtp=mtp)
        return cls._of_symbols(stage_symbols(runs, mtp), pp)

    @classmethod
    def _of_symbols(cls, symbols: list[str], pp: int) -> "StageLayout":
        stages, layer = [], 0
        for held in symbols:
            count = held.count("t")
            stages.append(
                Stage(
                    first_layer=layer,
                    layer_count=count,
                    embedding="E" in held,
                    mtp_layers=held.count("m"),
                    loss="L" in held,
                )
            )
            layer += count
        return cls(stages=tuple(tuple(stages[rank::pp]) for rank in range(pp)))


def parse_layout(text: str, pp: int, *, num_layers: int | None = None, mtp: int | None = None) -> StageLayout:
    """Reads a ``pipeline_model_parallel_layout`` string of megatron-core.

    ``E`` is the embedding, ``t`` a decoder layer, ``m`` a multi-token prediction layer, ``L`` the loss; ``|``
    separates stages, ``x*3`` and ``(tt|)*3`` repeat, commas are decoration. Stage ``i`` is virtual stage
    ``i // pp`` of rank ``i % pp``: ``"Et*3|(tt|)*29,m|L"`` with ``pp=16`` has two virtual stages on each
    rank.

    Args:
        text: The string.
        pp: Pipeline ranks; the number of stages must be a multiple.
        num_layers: Decoder layers of the model, if they are to be checked.
        mtp: Multi-token prediction layers of the model, if they are to be checked.

    Raises:
        StageError: it cannot be read, megatron-core would refuse it, or the embedding is not in the first
            stage or the loss not in the last (megatron-core accepts these and then builds them elsewhere).
    """
    _at_least_one("pp", pp)
    symbols = read_stages(text)
    if len(symbols) % pp:
        nearest = max(1, round(len(symbols) / pp)) * pp
        raise StageError(
            f"the layout has {len(symbols)} stages, which is no multiple of pp={pp}",
            f"write {nearest} stages, or use another pp",
            "pipeline_layout",
        )
    _check_order(symbols)
    layout = StageLayout._of_symbols(symbols, pp)
    if num_layers is not None and layout.num_layers != num_layers:
        balanced = StageLayout.balanced(num_layers, pp, layout.vpp, mtp=layout.mtp_layers)
        raise StageError(
            f"the layout places {layout.num_layers} decoder layers, but the model has {num_layers}",
            f"write {num_layers} times 't', as in {balanced.to_layout_string()!r}",
            "pipeline_layout",
        )
    if mtp is not None and layout.mtp_layers != mtp:
        raise StageError(
            f"the layout places {layout.mtp_layers} multi-token prediction layers, but the model has {mtp}",
            f"write {mtp} times 'm', all in one stage after the last 't'" if mtp else "leave 'm' out",
            "pipeline_layout",
        )
    return layout


def lay_out_stages(
    num_layers: int,
    pp: int,
    vpp: int | None = None,
    *,
    pipeline_layout: str | None = None,
    account_for_embedding: bool = False,
    account_for_loss: bool = False,
    first_stage_layers: int | None = None,
    last_stage_layers: int | None = None,
    mtp: int = 0,
) -> StageLayout:
    """By the layout string if there is one, otherwise as :meth:`StageLayout.uniform`.

    Raises:
        StageError: the layers cannot be divided so, the string is combined with another option, or has
            another number of virtual stages than ``vpp``.
    """
    if pipeline_layout is None:
        return StageLayout.uniform(
            num_layers,
            pp,
            vpp,
            account_for_embedding=account_for_embedding,
            account_for_loss=account_for_loss,
            first_stage_layers=first_stage_layers,
            last_stage_layers=last_stage_layers,
            mtp=mtp,
        )
    others = {
        "account_for_embedding_in_pipeline_split": account_for_embedding or None,
        "account_for_loss_in_pipeline_split": account_for_loss or None,
        "num_layers_in_first_pipeline_stage": first_stage_layers,
        "num_layers_in_last_pipeline_stage": last_stage_layers,
    }
    if given := {name: value for name, value in others.items() if value is not None}:
        raise StageError(
            "a pipeline layout says where every layer stands, so "
            f"{' and '.join(f'{name}={value}' for name, value in given.items())} cannot be given too",
            f"leave {' and '.join(given)} out",
            "pipeline_layout",
        )
    layout = parse_layout(pipeline_layout, pp, num_layers=num_layers, mtp=mtp)
    if vpp is not None and vpp != layout.vpp:
        raise StageError(
            f"the layout has {layout.pp * layout.vpp} stages, {layout.vpp} for each of pp={pp} ranks, "
            f"but vpp={vpp}",
            f"use vpp={layout.vpp} or leave it out, or write {pp * vpp} stages",
            "pipeline_layout",
        )
    return layout


def stages_of(parallel: MegatronTopologyConfig, num_layers: int, *, mtp: int = 0) -> StageLayout:
    """:func:`lay_out_stages` as the trainer's topology says.

    Args:
        parallel: Its ``pp``, ``vpp`` and the five fields about stages are used.
        num_layers: Decoder layers of the model.
        mtp: Multi-token prediction layers of the model.

    Raises:
        StageError: the layers cannot be divided so; ``field`` names a field of ``parallel``, ``num_layers``
            or ``mtp``.
    """
    return lay_out_stages(
        num_layers,
        parallel.pp,
        parallel.vpp,
        pipeline_layout=parallel.pipeline_layout,
        account_for_embedding=parallel.account_for_embedding_in_pipeline_split,
        account_for_loss=parallel.account_for_loss_in_pipeline_split,
        first_stage_layers=parallel.num_layers_in_first_pipeline_stage,
        last_stage_layers=parallel.num_layers_in_last_pipeline_stage,
        mtp=mtp,
    )


def _check_order(symbols: list[str]) -> None:
    """Whether what the stages hold, read in the microbatch's order, is E, then t, then m, then L."""
    held = "".join(symbols)
    for letter, name, index in (("E", "embedding", 0), ("L", "loss", len(symbols) - 1)):
        count = held.count(letter)
        if count != 1:
            raise StageError(
                f"the layout has the {name} ({letter!r}) {count} times",
                f"write {letter!r} once, in the {'first' if index == 0 else 'last'} stage",
                "pipeline_layout",
            )
        if letter not in symbols[index]:
            raise StageError(
                f"the {name} ({letter!r}) stands in stage "
                f"{next(i for i, stage in enumerate(symbols) if letter in stage)} of {len(symbols)}, counted "
                f"from 0",
                f"move it to stage {index}",
                "pipeline_layout",
            )
    if "t" not in held:
        raise StageError("the layout has no decoder layer ('t')", "write 't' for each", "pipeline_layout")
    if not held.startswith("E") or not held.endswith("L"):
        raise StageError(
            "a layer stands before the embedding or after the loss",
            "begin the first stage with 'E' and end the last with 'L'",
            "pipeline_layout",
        )
    if "t" in held[held.find("m") :] and "m" in held:
        raise StageError(
            "a decoder layer ('t') stands after a multi-token prediction layer ('m')",
            "write 'm' after the last 't'",
            "pipeline_layout",
        )


def _check_shape(stages: tuple[tuple[Stage, ...], ...]) -> None:
    widths = {len(row) for row in stages}
    if not stages or widths == {0}:
        raise StageError(
            "a stage layout without a stage", "give every pipeline rank at least one", "pipeline_layout"
        )
    if len(widths) > 1:
        raise StageError(
            f"the pipeline ranks have {sorted(widths)} virtual stages",
            f"give every rank equally many, such as {max(widths)}",
            "pipeline_layout",
        )


def _check_contents(layout: StageLayout) -> None:
    expected = 0
    for i, stage in enumerate(layout.in_order):
        if min(stage.layer_count, stage.mtp_layers) < 0:
            raise StageError(
                f"stage {i} holds {stage.layer_count} decoder and {stage.mtp_layers} multi-token prediction "
                f"layers",
                "use 0 or more",
                "pipeline_layout",
            )
        if stage.first_layer != expected:
            raise StageError(
                f"stage {i} of the microbatch's way begins with layer {stage.first_layer}, but the stages "
                f"before it hold the layers below {expected}",
                f"begin it with layer {expected}",
                "pipeline_layout",
            )
        expected += stage.layer_count
    _check_order([stage.symbols for stage in layout.in_order])
    _check_mtp(layout)


def _check_mtp(layout: StageLayout) -> None:
    places = [
        (pp_rank, vpp_rank)
        for pp_rank, row in enumerate(layout.stages)
        for vpp_rank, stage in enumerate(row)
        if stage.mtp_layers
    ]
    if len(places) > 1:
        raise StageError(
            f"the {layout.mtp_layers} multi-token prediction layers are spread over {len(places)} stages",
            "write every 'm' into one stage; the one of the loss always works",
            "pipeline_layout",
        )
    if places and places[0][1] != layout.vpp - 1:
        raise StageError(
            f"the multi-token prediction layers stand in virtual stage {places[0][1]} of rank "
            f"{places[0][0]}; megatron-core has them only in the last of a rank's {layout.vpp}",
            f"write 'm' into one of the last {layout.pp} stages",
            "pipeline_layout",
        )


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise StageError(f"{name}={value} is below 1", f"use {name}=1 or more", name)
