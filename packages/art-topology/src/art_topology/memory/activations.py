"""What a layer keeps of the forward pass until its backward pass, tensor by tensor, for one row on one rank.

The tensors are those that fused kernels keep (flash attention, fused norm and gated activation): inputs of
norms, inputs of matrices whose weights or adapters are trained, inputs and output of the core of attention,
and the input of the activation function. With ``tp`` above 1, sequence parallelism divides what is not
divided by heads or features (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
Models", 2205.05198, whose count per layer, s b h (34 + 5 a s / h) bytes divided by t, is what this comes to
for a GPT with dropout and without flash attention).
"""

import math
from functools import lru_cache

import msgspec

from art_topology.memory.assumptions import MemoryAssumptions
from art_topology.models.attention import GqaShape, MlaShape
from art_topology.models.compressed import CompressedAttentionShape
from art_topology.models.description import LayerShape
from art_topology.models.flops import adapted
from art_topology.models.linear import CHUNK_TOKENS, GatedDeltaNetShape
from art_topology.models.matrices import Matrix, Part
from art_topology.models.mlp import DenseShape, MoeShape
from art_topology.ranks import RankLayout
from art_topology.workload import WorkloadSpec


class SavedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor kept for the backward pass.

    Args:
        name: What it is.
        bytes: Its bytes on one rank, for one row.
        core: It belongs to the core of attention alone, which selective recomputation computes again.
    """

    name: str
    bytes: int
    core: bool = False


class _Row(msgspec.Struct, frozen=True):
    """Tokens of one row on a rank, and who divides what."""

    layer: LayerShape
    layout: RankLayout
    workload: WorkloadSpec
    assumptions: MemoryAssumptions

    @property
    def tokens(self) -> int:
        """Between gathers: all that context parallelism leaves."""
        return math.ceil(self.workload.packed_sequence_length / self.layout.cp)

    @property
    def sequence_tokens(self) -> int:
        """Where sequence parallelism divides them again."""
        return math.ceil(self.tokens / self.layout.tp) if self.assumptions.sequence_parallel else self.tokens

    def heads(self, count: int) -> int:
        return math.ceil(count / self.layout.tp)

    def keeps(self, *parts: Part) -> bool:
        """Whether a matrix of these parts is trained or has an adapter, so that its input is kept."""
        if self.workload.lora_rank is None:
            return True
        return any(adapted(m, self.workload) for m in self.layer.matrices() if m.part in parts)

    def tensor(
        self,
        name: str,
        features: float,
        *,
        sequence: bool = False,
        core: bool = False,
        size: int | None = None,
    ) -> SavedTensor:
        """Features per token, of ``size`` bytes each; by default in the workload's dtype."""
        tokens = self.sequence_tokens if sequence else self.tokens
        size = self.workload.dtype_bytes if size is None else size
        return SavedTensor(name=name, bytes=round(tokens * features * size), core=core)


@lru_cache(maxsize=4096)
def saved_tensors(
    layer: LayerShape,
    layout: RankLayout,
    workload: WorkloadSpec,
    assumptions: MemoryAssumptions,
) -> tuple[SavedTensor, ...]:
    """What one layer keeps of one row on one rank, without recomputation.

    Args:
        layer: The layer.
        layout: How it is divided; the fullest rank is meant.
        workload: Length of the row, dtype, adapters.
        assumptions: What is taken for granted.
    """
    row = _Row(layer, layout, workload, assumptions)
    found = [*_stream(row), *_attention(row), *_feed_forward(row)]
    if workload.lora_rank is not None:
        found.append(_reduced(row))
    return tuple(tensor for tensor in found if tensor.bytes)


def kept_bytes(
    layer: LayerShape, layout: RankLayout, workload: WorkloadSpec, assumptions: MemoryAssumptions, full: bool
) -> int:
    """Bytes that one layer keeps of one row, with what the workload recomputes; ``full``: only its input."""
    if full:
        return (
            _Row(layer, layout, workload, assumptions)
            .tensor("input", layer.hidden_size * layer.streams, sequence=True)
            .bytes
        )
    selective = workload.recompute == "selective"
    tensors = saved_tensors(layer, layout, workload, assumptions)
    return sum(tensor.bytes for tensor in tensors if not (selective and tensor.core))


def _stream(row: _Row) -> list[SavedTensor]:
    """Inputs and outputs of norms on the residual stream, hyper-connections, per-layer inputs."""
    layer, hidden = row.layer, row.layer.hidden_size
    norms = layer.norms if layer.mlp is not None else min(layer.norms, 1)
    found = [row.tensor("inputs of norms", norms * hidden, sequence=True)]
    if row.keeps("attention", "indexer"):
        found.append(row.tensor("input of attention", hidden, sequence=True))
    if layer.mlp is not None and row.keeps("dense_mlp", "shared_experts", "routed_experts", "router"):
        found.append(row.tensor("input of the feed-forward layer", hidden, sequence=True))
    if row.assumptions.mask_bytes:
        size = round(row.sequence_tokens * hidden * row.assumptions.mask_bytes)
        found.append(SavedTensor(name="dropout masks", bytes=size))
    if layer.streams > 1:
        found.append(row.tensor("streams of hyper-connections", 2 * layer.streams * hidden, sequence=True))
    if layer.per_layer_size:
        found.append(row.tensor("per-layer input", 3 * layer.per_layer_size + 2 * hidden, sequence=True))
    if layer.joins:
        found.append(row.tensor("joined stream and embedding", 5 * hidden, sequence=True))
    return found


def _attention(row: _Row) -> list[SavedTensor]:
    shape = row.layer.attention
    if isinstance(shape, GqaShape):
        return _grouped(row, shape)
    if isinstance(shape, MlaShape):
        return _latent(row, shape)
    if isinstance(shape, CompressedAttentionShape):
        return _compressed(row, shape)
    return _linear(row, shape)


def _core(row: _Row, heads: int) -> list[SavedTensor]:
    """Softmax statistics of flash attention; scores too where they are kept."""
    found = [row.tensor("softmax statistics", heads, core=True, size=4)]
    if row.assumptions.score_bytes:
        pairs = row.tokens * row.workload.packed_sequence_length
        size = round(pairs * heads * row.assumptions.score_bytes)
        found = [SavedTensor(name="attention scores", bytes=size, core=True)]
    return found


def _grouped(row: _Row, shape: GqaShape) -> list[SavedTensor]:
    heads, kv_heads = row.heads(shape.query_heads), row.heads(shape.kv_heads)
    queries, output = heads * shape.head_dim, heads * shape.value_dim
    keys, values = kv_heads * shape.head_dim, kv_heads * shape.value_dim
    found = [row.tensor("queries", queries), row.tensor("output of attention", output)]
    if not shape.shares_kv:
        found.append(row.tensor("keys and values", keys + values))
    if shape.qk_norm != "none":
        before = queries + (0 if shape.shares_kv else keys)
        found.append(row.tensor("queries and keys before their norms", before))
    if shape.output_gate:
        found.append(row.tensor("output gate", 2 * output))
    return found + _core(row, heads)


def _latent(row: _Row, shape: MlaShape) -> list[SavedTensor]:
    heads, position = row.heads(shape.heads), shape.nope_dim + shape.rope_dim
    latents = 2 * (shape.kv_rank + (shape.query_rank or 0)) + shape.rope_dim
    found = [
        row.tensor("latents before and after their norms", latents, sequence=True),
        row.tensor("queries", heads * position),
        row.tensor("output of attention", heads * shape.value_dim),
    ]
    if shape.topk is None:
        found.append(row.tensor("keys and values", heads * (position + shape.value_dim)))
    else:
        absorbed = heads * (shape.kv_rank + shape.rope_dim)
        found.append(row.tensor("queries on latents", absorbed))
        found.append(row.tensor("output on latents", heads * shape.kv_rank))
        found.append(row.tensor("latents of the core", shape.kv_rank + shape.rope_dim))
    if shape.indexer is not None:
        found.append(row.tensor("selected keys", shape.indexer.topk, size=4))
    return found + _core(row, heads)


def _compressed(row: _Row, shape: CompressedAttentionShape) -> list[SavedTensor]:
    heads, twice = row.heads(shape.heads), 2 if shape.overlap else 1
    width = heads * shape.head_dim
    found = [
        row.tensor("latent of queries before and after its norm", 2 * shape.query_rank, sequence=True),
        row.tensor("queries before and after their norm", 2 * width),
        row.tensor("shared key before and after its norm", 2 * shape.head_dim),
        row.tensor("output of attention", width),
        row.tensor("output of groups", row.heads(shape.output_groups) * shape.output_rank),
    ]
    if shape.rate is not None:
        entries = 2 * shape.head_dim / shape.rate
        found.append(row.tensor("compressor", 3 * twice * shape.head_dim + entries))
    if shape.indexer is not None:
        found.append(row.tensor("selected keys", shape.indexer.topk, size=4))
    return found + _core(row, heads)


def _linear(row: _Row, shape: GatedDeltaNetShape) -> list[SavedTensor]:
    heads, key_heads = row.heads(shape.value_heads), row.heads(shape.key_heads)
    values = heads * shape.value_dim
    mixed = 2 * key_heads * shape.key_dim + values
    return [
        row.tensor("queries, keys and values before and after the convolution", 2 * mixed),
        row.tensor("output gate", values),
        row.tensor("output before and after its norm", 2 * values),
        row.tensor("decay and update gates", 2 * heads, size=4),
        row.tensor("products within chunks", CHUNK_TOKENS * heads, core=True),
    ]


def _feed_forward(row: _Row) -> list[SavedTensor]:
    mlp = row.layer.mlp
    if mlp is None:
        return []
    if isinstance(mlp, DenseShape):
        return _gated(row, "dense_mlp", "", row.tokens, mlp.inner_size, row.layout.tp, mlp.gated)
    return _experts(row, mlp)


def _experts(row: _Row, mlp: MoeShape) -> list[SavedTensor]:
    tokens = routed_tokens(row.layout, row.workload, row.assumptions, mlp)
    found = [row.tensor("scores and probabilities of the router", 2 * mlp.experts, sequence=True, size=4)]
    if row.keeps("routed_experts"):
        size = tokens * mlp.hidden_size * row.workload.dtype_bytes
        found.append(SavedTensor(name="inputs of experts", bytes=size))
    found += _gated(row, "routed_experts", " of experts", tokens, mlp.expert_size, row.layout.etp, mlp.gated)
    if mlp.shared_size:
        found += _gated(
            row,
            "shared_experts",
            " of shared experts",
            row.tokens,
            mlp.shared_size,
            row.layout.tp,
            mlp.gated,
        )
    return found


def _gated(
    row: _Row, part: Part, whose: str, tokens: int, inner: int, ranks: int, gated: bool
) -> list[SavedTensor]:
    width = tokens * math.ceil(inner / ranks) * row.workload.dtype_bytes
    found = [SavedTensor(name=f"gate and up{whose}" if gated else f"up{whose}", bytes=(1 + gated) * width)]
    if row.keeps(part):
        found.append(SavedTensor(name=f"input of down{whose}", bytes=width))
    return found


def routed_tokens(
    layout: RankLayout, workload: WorkloadSpec, assumptions: MemoryAssumptions, mlp: MoeShape
) -> int:
    """Tokens of one row that the experts of one rank work on: ``topk`` for each token that the rank sends,
    as many as it receives on the mean; expert tensor parallelism gathers them, and the fullest rank has
    more."""
    tokens = math.ceil(math.ceil(workload.packed_sequence_length / layout.cp) / layout.tp)
    spread = assumptions.expert_imbalance if layout.ep > 1 else 1.0
    return math.ceil(tokens * mlp.topk * layout.etp * spread)


def _reduced(row: _Row) -> SavedTensor:
    """What adapters reduce their inputs to: the input of the second matrix of each."""
    rank = row.workload.lora_rank or 0
    count = sum(1 for matrix in row.layer.matrices() if _plain(matrix) and adapted(matrix, row.workload))
    routed = 0
    mlp = row.layer.mlp
    if isinstance(mlp, MoeShape):
        matrices = [m for m in mlp.matrices() if m.part == "routed_experts"]
        tokens = routed_tokens(row.layout, row.workload, row.assumptions, mlp)
        routed = tokens * rank * sum(adapted(m, row.workload) for m in matrices)
    size = (row.tokens * rank * count + routed) * row.assumptions.adapter_bytes
    return SavedTensor(name="inputs reduced by adapters", bytes=size)


def _plain(matrix: Matrix) -> bool:
    return matrix.part != "routed_experts"
