"""One division of a model's layers into pipeline stages, and what always holds of it.

Every layer is held once, in order; the embedding stands at the very beginning and the loss at the very end;
all multi-token prediction (MTP) layers stand together, after the last decoder layer, in the last virtual
stage of their rank.
"""

from collections.abc import Iterator

import msgspec

from art_topology.stage_division import balance, divide, stage_symbols
from art_topology.stage_strings import StageError, write_stages


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
        last = self.stages[-1][-1]
        return last.first_layer + last.layer_count

    @property
    def mtp_layers(self) -> int:
        """How many multi-token prediction layers there are."""
        return sum(row[-1].mtp_layers for row in self.stages)

    @property
    def mtp_pp_rank(self) -> int | None:
        """The pipeline rank that holds the multi-token prediction layers; None if there are none."""
        return next((rank for rank, row in enumerate(self.stages) if row[-1].mtp_layers), None)

    @property
    def mtp_standalone(self) -> bool:
        """Whether multi-token prediction stands on another rank than the loss (megatron-core's word)."""
        return self.mtp_pp_rank not in (None, self.pp - 1)

    @property
    def in_order(self) -> Iterator[Stage]:
        """All stages in the order in which a microbatch passes them."""
        return (row[vpp_rank] for vpp_rank in range(self.vpp) for row in self.stages)

    def layers_of(self, pp_rank: int) -> tuple[int, ...]:
        """The decoder layers of pipeline rank ``pp_rank``, ascending, counted from 0.

        Raises:
            IndexError: there is no such rank.
        """
        return tuple(layer for stage in self.rank(pp_rank) for layer in stage.layers)

    def rank(self, pp_rank: int) -> tuple[Stage, ...]:
        """The virtual stages of pipeline rank ``pp_rank``.

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
        return cls.of_symbols(stage_symbols(runs, mtp), pp)

    @classmethod
    def balanced(cls, num_layers: int, pp: int, vpp: int | None = None, *, mtp: int = 0) -> "StageLayout":
        """As evenly as any number of layers can be divided: what :meth:`uniform` refuses, this divides.

        Embedding, multi-token prediction (as ``mtp`` layers) and loss count as a layer each, so the stages
        at the ends hold fewer decoder layers. Stages differ by at most one of these units.

        Args:
            num_layers: Decoder layers of the model.
            pp: Pipeline ranks.
            vpp: Virtual stages of each rank; None or 1 means none.
            mtp: Multi-token prediction layers, which stand before the loss.

        Raises:
            StageError: a number is below its least.
        """
        runs = balance(num_layers=num_layers, pp=pp, vpp=1 if vpp is None else vpp, mtp=mtp)
        return cls.of_symbols(stage_symbols(runs, mtp), pp)

    @classmethod
    def of_symbols(cls, symbols: list[str], pp: int) -> "StageLayout":
        """From megatron-core's letters of each stage.

        Args:
            symbols: The letters, such as "Ett", in the microbatch's order.
            pp: Pipeline ranks.

        Raises:
            StageError: something that always holds does not.
        """
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


def check_order(symbols: list[str]) -> None:
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
    check_order([stage.symbols for stage in layout.in_order])
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
            f"the {sum(stage.mtp_layers for stage in layout.in_order)} multi-token prediction layers are "
            f"spread over {len(places)} stages",
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
