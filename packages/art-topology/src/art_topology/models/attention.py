"""Softmax attention: grouped queries (GQA, MHA, MQA), latent (MLA), and the indexer of sparse attention.

A *core* is what happens between the projections: scores and weighted values. Its FLOPs depend on the context.
"""

import msgspec

from art_topology.models.matrices import Matrix, Vector
from art_topology.models.spans import mean_capped


class IndexerShape(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the keys that sparse attention attends to (DeepSeek sparse attention, "lightning indexer").

    Args:
        heads: Heads of its queries; it has one key for all.
        head_dim: Features of a head.
        topk: Keys that are kept for each query.
        query_inputs: Features that its queries are projected from.
    """

    heads: int
    head_dim: int
    topk: int
    query_inputs: int

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        """Its projections from ``hidden_size`` features: queries, one key, and a weight per head. Tensor
        parallelism does not divide them."""
        return (
            Matrix(
                name="indexer_q",
                part="indexer",
                inputs=self.query_inputs,
                outputs=self.heads * self.head_dim,
                adapted=False,
            ),
            Matrix(
                name="indexer_k", part="indexer", inputs=hidden_size, outputs=self.head_dim, adapted=False
            ),
            Matrix(
                name="indexer_weights", part="indexer", inputs=hidden_size, outputs=self.heads, adapted=False
            ),
        )

    def score_flops(self, keys: float) -> float:
        """FLOPs of the scores of one query against ``keys`` keys: dot products and the weighted sum of
        heads."""
        return 2 * self.heads * (self.head_dim + 1) * keys


class GqaShape(msgspec.Struct, frozen=True, kw_only=True, tag="gqa"):
    """Attention with ``query_heads / kv_heads`` queries to a key and value head.

    Args:
        hidden_size: Features of the residual stream.
        query_heads: Heads of queries.
        kv_heads: Heads of keys and values.
        head_dim: Features of a query or key head.
        value_dim: Features of a value head.
        window: Tokens that a query attends to, itself included; None: all before it.
        qkv_bias: Projections of queries, keys and values add a bias.
        output_bias: The output projection adds a bias.
        qk_norm: Queries and keys are normalized: per ``head``, over ``all`` heads, or not.
        output_gate: Queries carry a gate for the output (twice the query projection).
        sinks: A learned logit per head takes part in the softmax.
        value_is_key: Values are the keys: there is no value projection (both are still cached).
        shares_kv: It has no keys and values of its own: those of an earlier layer are used.
    """

    hidden_size: int
    query_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: str = "none"
    output_gate: bool = False
    sinks: bool = False
    value_is_key: bool = False
    shares_kv: bool = False

    def matrices(self) -> tuple[Matrix, ...]:
        """Projections of queries, keys, values and output."""
        hidden, bias = self.hidden_size, self.qkv_bias
        width = self.query_heads * self.head_dim * (2 if self.output_gate else 1)
        found = [_columns("q", hidden, width, self.query_heads, bias)]
        if not self.shares_kv:
            found.append(_columns("k", hidden, self.kv_heads * self.head_dim, self.kv_heads, bias))
            if not self.value_is_key:
                found.append(_columns("v", hidden, self.kv_heads * self.value_dim, self.kv_heads, bias))
        found.append(
            _rows("o", self.query_heads * self.value_dim, hidden, self.query_heads, self.output_bias)
        )
        return tuple(found)

    def vectors(self) -> tuple[Vector, ...]:
        """Norms of queries and keys, and sinks."""
        found = []
        if self.qk_norm != "none":
            q, k = (1, 1) if self.qk_norm == "head" else (self.query_heads, self.kv_heads)
            found.append(Vector(name="q_norm", part="norms", size=q * self.head_dim))
            if not self.shares_kv:
                found.append(Vector(name="k_norm", part="norms", size=k * self.head_dim))
        if self.sinks:
            found.append(Vector(name="sinks", part="attention", size=self.query_heads, divided=True))
        return tuple(found)

    @property
    def core_width(self) -> int:
        """Features of the core's output, over all heads."""
        return self.query_heads * self.value_dim

    def core_flops(self, length: float) -> float:
        """Forward FLOPs of the core for one token, mean over a causal sequence of ``length`` tokens."""
        return self._core(mean_capped(length, self.window))

    def core_flops_at(self, visible: float) -> float:
        """Forward FLOPs of the core for a token that sees ``visible`` tokens, itself included (decoding)."""
        return self._core(visible if self.window is None else min(visible, self.window))

    def _core(self, keys: float) -> float:
        return 2 * self.query_heads * (self.head_dim + self.value_dim) * keys

    def indexer_flops(self, length: float) -> float:
        """It has no indexer: 0, whatever the ``length``."""
        return 0.0

    def kv_bytes_per_token(self, dtype_bytes: float, tp: int = 1) -> float:
        """Bytes of keys and values, of ``dtype_bytes`` each, that a worker caches for one token; heads are
        divided among ``tp`` workers."""
        if self.shares_kv:
            return 0.0
        heads = -(-self.kv_heads // tp)
        return heads * (self.head_dim + self.value_dim) * dtype_bytes

    @property
    def kv_window_tokens(self) -> int | None:
        """Most tokens of a sequence that stay cached; None: all."""
        return self.window

    def state_bytes(self, dtype_bytes: float, tp: int = 1) -> float:
        """Bytes of a sequence that do not grow with its length: 0, with any ``dtype_bytes`` and ``tp``."""
        return 0.0


class MlaShape(msgspec.Struct, frozen=True, kw_only=True, tag="mla"):
    """Multi-head latent attention: keys and values are expanded from one latent vector per token.

    Args:
        hidden_size: Features of the residual stream.
        heads: Heads of queries, keys and values.
        query_rank: Features of the queries' latent; None: queries are projected directly.
        kv_rank: Features of the latent of keys and values.
        nope_dim: Features of a query or key head without position.
        rope_dim: Features of a query head, and of the one shared key, with position.
        value_dim: Features of a value head.
        bias: The down-projections and the output projection add a bias.
        indexer: Selects the keys; None: the layer has none of its own.
        topk: Keys that a query attends to, by its own indexer or an earlier layer's; None: all.
    """

    hidden_size: int
    heads: int
    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    bias: bool = False
    indexer: IndexerShape | None = None
    topk: int | None = None

    def matrices(self) -> tuple[Matrix, ...]:
        """Down- and up-projections of queries and of keys and values, the output, and the indexer's."""
        hidden, heads, query = self.hidden_size, self.heads, self.heads * (self.nope_dim + self.rope_dim)
        found = []
        if self.query_rank is None:
            found.append(_columns("q", hidden, query, heads, False))
        else:
            found.append(
                Matrix(
                    name="q_down",
                    part="attention",
                    inputs=hidden,
                    outputs=self.query_rank,
                    bias=self.bias,
                )
            )
            found.append(_columns("q_up", self.query_rank, query, heads, False))
        found.append(
            Matrix(
                name="kv_down",
                part="attention",
                inputs=hidden,
                outputs=self.kv_rank + self.rope_dim,
                bias=self.bias,
            )
        )
        found.append(_columns("kv_up", self.kv_rank, heads * (self.nope_dim + self.value_dim), heads, False))
        found.append(_rows("o", heads * self.value_dim, hidden, heads, self.bias))
        return (*found, *(self.indexer.matrices(hidden) if self.indexer else ()))

    def vectors(self) -> tuple[Vector, ...]:
        """Norms of the latents, and of the indexer's key (weight and bias)."""
        found = [Vector(name="kv_norm", part="norms", size=self.kv_rank)]
        if self.query_rank is not None:
            found.append(Vector(name="q_norm", part="norms", size=self.query_rank))
        if self.indexer:
            found.append(Vector(name="indexer_k_norm", part="norms", size=2 * self.indexer.head_dim))
        return tuple(found)

    @property
    def core_width(self) -> int:
        """Features of the core's output, over all heads."""
        return self.heads * self.value_dim

    def core_flops(self, length: float) -> float:
        """Forward FLOPs of the core for one token, mean over a causal sequence of ``length`` tokens.

        Without top-k, keys and values are expanded (as in training); with it, the core works on the latents
        (each query has keys of its own, so expanding them would cost more than it saves).
        """
        if self.topk is None:
            return self._expanded(mean_capped(length, None))
        return self._absorbed(mean_capped(length, self.topk))

    def core_flops_at(self, visible: float) -> float:
        """Forward FLOPs of the core for a token that sees ``visible`` tokens (decoding, on the latents)."""
        keys = self._absorbed(visible if self.topk is None else min(visible, self.topk))
        return keys + (self.indexer.score_flops(visible) if self.indexer else 0.0)

    def _expanded(self, keys: float) -> float:
        return 2 * self.heads * (self.nope_dim + self.rope_dim + self.value_dim) * keys

    def _absorbed(self, keys: float) -> float:
        return 2 * self.heads * (2 * self.kv_rank + self.rope_dim) * keys

    def indexer_flops(self, length: float) -> float:
        """Forward FLOPs of the indexer's scores for one token: against every key before it, mean over a
        sequence of ``length`` tokens."""
        return self.indexer.score_flops(mean_capped(length, None)) if self.indexer else 0.0

    def kv_bytes_per_token(self, dtype_bytes: float, tp: int = 1) -> float:
        """Bytes that a worker caches for one token: the latent, in numbers of ``dtype_bytes``, on every one
        of ``tp`` workers, and the indexer's key.

        The indexer's key is counted as vLLM stores it: 8-bit floats with a 32-bit scale per 128.
        """
        index = self.indexer.head_dim * (1 + 4 / 128) if self.indexer else 0.0
        return (self.kv_rank + self.rope_dim) * dtype_bytes + index

    @property
    def kv_window_tokens(self) -> int | None:
        """All tokens of a sequence stay cached."""
        return None

    def state_bytes(self, dtype_bytes: float, tp: int = 1) -> float:
        """Bytes of a sequence that do not grow with its length: 0, with any ``dtype_bytes`` and ``tp``."""
        return 0.0


def _columns(name: str, inputs: int, outputs: int, heads: int, bias: bool) -> Matrix:
    return Matrix(
        name=name, part="attention", inputs=inputs, outputs=outputs, bias=bias, divided="columns", units=heads
    )


def _rows(name: str, inputs: int, outputs: int, heads: int, bias: bool) -> Matrix:
    return Matrix(
        name=name, part="attention", inputs=inputs, outputs=outputs, bias=bias, divided="rows", units=heads
    )
