"""Compressed attention (DeepSeek V4): a sliding window of single tokens, and compressed entries of the
rest."""

import msgspec

from art_topology.models.attention import IndexerShape
from art_topology.models.matrices import Matrix, Vector
from art_topology.models.spans import mean_capped


class CompressedAttentionShape(msgspec.Struct, frozen=True, kw_only=True, tag="compressed"):
    """One key, which is also the value, shared by all heads; entries that stand for ``rate`` tokens each
    extend the window to the whole context.

    Args:
        hidden_size: Features of the residual stream.
        heads: Heads of queries.
        head_dim: Features of a query and of the shared key and value.
        query_rank: Features of the queries' latent.
        output_groups: Groups of heads that are projected down separately.
        output_rank: Features of each group after that.
        window: Tokens that are attended to one by one.
        rate: Tokens that one compressed entry stands for; None: there are none (a pure sliding window).
        overlap: Each entry is made of two windows of ``rate`` tokens (twice the compressor's projections).
        indexer: Selects among the compressed entries; None: all of them are attended to.
    """

    hidden_size: int
    heads: int
    head_dim: int
    query_rank: int
    output_groups: int
    output_rank: int
    window: int
    rate: int | None = None
    overlap: bool = False
    indexer: IndexerShape | None = None

    def matrices(self) -> tuple[Matrix, ...]:
        """Queries over a latent, the shared key, the grouped output, the compressor's and the indexer's."""
        hidden, heads = self.hidden_size, self.heads
        attention = (
            Matrix(name="q_down", part="attention", inputs=hidden, outputs=self.query_rank),
            Matrix(
                name="q_up",
                part="attention",
                inputs=self.query_rank,
                outputs=heads * self.head_dim,
                divided="columns",
                units=heads,
            ),
            Matrix(name="kv", part="attention", inputs=hidden, outputs=self.head_dim),
            Matrix(
                name="o_down",
                part="attention",
                inputs=heads * self.head_dim // self.output_groups,
                outputs=self.output_rank,
                copies=self.output_groups,
                active=self.output_groups,
                divided_copies=True,
            ),
            Matrix(
                name="o_up",
                part="attention",
                inputs=self.output_groups * self.output_rank,
                outputs=hidden,
                divided="rows",
                units=self.output_groups,
            ),
        )
        return (*attention, *self._compressors())

    def _compressors(self) -> tuple[Matrix, ...]:
        if self.rate is None:
            return ()
        hidden, twice = self.hidden_size, 2 if self.overlap else 1
        found = [
            Matrix(name=name, part="attention", inputs=hidden, outputs=twice * self.head_dim)
            for name in ("compressor_kv", "compressor_gate")
        ]
        if self.indexer:
            index = self.indexer
            query, _, weights = index.matrices(hidden)
            found += [query, weights]
            found += [
                Matrix(
                    name=name, part="indexer", inputs=hidden, outputs=twice * index.head_dim, adapted=False
                )
                for name in ("indexer_kv", "indexer_gate")
            ]
        return tuple(found)

    def vectors(self) -> tuple[Vector, ...]:
        """Norms of the latents, sinks, and the position biases of the compressors."""
        found = [
            Vector(name="q_norm", part="norms", size=self.query_rank),
            Vector(name="kv_norm", part="norms", size=self.head_dim),
            Vector(name="sinks", part="attention", size=self.heads, divided=True),
        ]
        twice = 2 if self.overlap else 1
        if self.rate is not None:
            found.append(
                Vector(name="compressor_bias", part="attention", size=self.rate * twice * self.head_dim)
            )
            found.append(Vector(name="compressor_norm", part="norms", size=self.head_dim))
            if self.indexer:
                size = self.indexer.head_dim
                found.append(Vector(name="indexer_bias", part="indexer", size=self.rate * twice * size))
                found.append(Vector(name="indexer_norm", part="norms", size=size))
        return tuple(found)

    @property
    def core_width(self) -> int:
        """Features of the core's output, over all heads."""
        return self.heads * self.head_dim

    @property
    def _topk(self) -> int | None:
        return self.indexer.topk if self.indexer else None

    def core_flops(self, length: float) -> float:
        """Forward FLOPs of the core for one token, mean over a causal sequence of ``length`` tokens."""
        keys = mean_capped(length, self.window)
        if self.rate is not None:
            keys += mean_capped(length, self._topk, self.rate)
        return 4 * self.heads * self.head_dim * keys

    def core_flops_at(self, visible: float) -> float:
        """Forward FLOPs of the core for a token that sees ``visible`` tokens, the indexer's scores
        included."""
        keys, scores = min(visible, self.window), 0.0
        if self.rate is not None:
            entries = visible / self.rate
            keys += entries if self._topk is None else min(entries, self._topk)
            scores = self.indexer.score_flops(entries) if self.indexer else 0.0
        return 4 * self.heads * self.head_dim * keys + scores

    def indexer_flops(self, length: float) -> float:
        """Forward FLOPs of the indexer's scores for one token: against every compressed entry before it,
        mean over a sequence of ``length`` tokens."""
        if self.indexer is None or self.rate is None:
            return 0.0
        return self.indexer.score_flops(mean_capped(length, None, self.rate))

    def kv_bytes_per_token(self, dtype_bytes: float, tp: int = 1) -> float:
        """Bytes that a worker caches for one token: a share of a compressed entry, in numbers of
        ``dtype_bytes``, and of the indexer's key, on every one of ``tp`` workers. The window is a state of
        fixed size (:meth:`state_bytes`)."""
        if self.rate is None:
            return 0.0
        index = self.indexer.head_dim * (1 + 4 / 128) if self.indexer else 0.0
        return (self.head_dim * dtype_bytes + index) / self.rate

    @property
    def kv_window_tokens(self) -> int | None:
        """Compressed entries of all tokens stay cached."""
        return None

    def state_bytes(self, dtype_bytes: float, tp: int = 1) -> float:
        """Bytes of a sequence that do not grow with its length: the window, and tokens not yet compressed,
        in numbers of ``dtype_bytes``, on every one of ``tp`` workers."""
        twice = 2 if self.overlap else 1
        pending = 0 if self.rate is None else 2 * twice * twice * self.rate * self.head_dim
        return (self.window * self.head_dim + pending) * dtype_bytes
