"""Linear attention: the gated delta net, whose state does not grow with the context."""

import msgspec

from art_topology.models.matrices import Matrix, Vector

CHUNK_TOKENS = 64
"""Tokens of a chunk in the chunked form that trainers and prefill use (flash-linear-attention,
transformers)."""


class GatedDeltaNetShape(msgspec.Struct, frozen=True, kw_only=True, tag="gated_delta_net"):
    """A recurrent matrix state per value head, updated by the gated delta rule.

    Args:
        hidden_size: Features of the residual stream.
        key_heads: Heads of queries and keys.
        value_heads: Heads of values, a multiple of ``key_heads``.
        key_dim: Features of a query or key head.
        value_dim: Features of a value head.
        conv_kernel: Tokens that the short convolution over queries, keys and values sees.
    """

    hidden_size: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int

    @property
    def _keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def _values(self) -> int:
        return self.value_heads * self.value_dim

    def matrices(self) -> tuple[Matrix, ...]:
        """Projections of queries and keys, values, output gate, update and decay gates, and output."""
        hidden = self.hidden_size

        def columns(name: str, outputs: int, heads: int, adapted: bool = True) -> Matrix:
            return Matrix(
                name=name,
                part="attention",
                inputs=hidden,
                outputs=outputs,
                divided="columns",
                units=heads,
                adapted=adapted,
            )

        return (
            columns("linear_qk", 2 * self._keys, self.key_heads),
            columns("linear_v", self._values, self.value_heads),
            columns("linear_z", self._values, self.value_heads),
            columns("linear_ba", 2 * self.value_heads, self.value_heads, adapted=False),
            Matrix(
                name="linear_o",
                part="attention",
                inputs=self._values,
                outputs=hidden,
                divided="rows",
                units=self.value_heads,
            ),
        )

    def vectors(self) -> tuple[Vector, ...]:
        """The short convolution, decay parameters, and the norm of the output."""
        channels = 2 * self._keys + self._values
        return (
            Vector(name="conv", part="attention", size=channels * self.conv_kernel, divided=True),
            Vector(name="dt_bias", part="attention", size=self.value_heads, divided=True),
            Vector(name="a_log", part="attention", size=self.value_heads, divided=True),
            Vector(name="linear_norm", part="norms", size=self.value_dim),
        )

    @property
    def core_width(self) -> int:
        """Features of the core's output, over all heads."""
        return self._values

    def core_flops(self, length: float) -> float:
        """Forward FLOPs of convolution and chunked delta rule for one token; ``length`` does not matter.

        For each value head and token of a chunk of C = 64 tokens, with head sizes k and v: scores among keys
        and between queries and keys (4 C k), the triangular inverse (C^2 / 3 on the mean), its products with
        values and keys (2 C (v + k)), the products with the state (4 k v), values within the chunk (2 C v),
        and the update of the state (2 k v).
        """
        k, v, chunk = self.key_dim, self.value_dim, CHUNK_TOKENS
        rule = 4 * chunk * k + chunk * chunk / 3 + 2 * chunk * (v + k) + 6 * k * v + 2 * chunk * v
        return self.value_heads * rule + self._convolution

    def core_flops_at(self, visible: float) -> float:
        """Forward FLOPs of one recurrent step: read, correct, update and query the state (8 k v per head),
        whatever is ``visible``."""
        return self.value_heads * 8 * self.key_dim * self.value_dim + self._convolution

    @property
    def _convolution(self) -> float:
        return 2 * (2 * self._keys + self._values) * self.conv_kernel

    def indexer_flops(self, length: float) -> float:
        """It has no indexer: 0, whatever the ``length``."""
        return 0.0

    def kv_bytes_per_token(self, dtype_bytes: float, tp: int = 1) -> float:
        """Bytes that a worker caches for one token: 0, with any ``dtype_bytes`` and ``tp``."""
        return 0.0

    @property
    def kv_window_tokens(self) -> int | None:
        """No keys are cached, of however many tokens: 0."""
        return 0

    def state_bytes(self, dtype_bytes: float, tp: int = 1) -> float:
        """Bytes of a sequence on one of ``tp`` workers: the matrix of every value head, and the last inputs
        of the convolution, both in the cache's dtype, of ``dtype_bytes``."""
        state = self.value_heads * self.key_dim * self.value_dim
        convolution = (2 * self._keys + self._values) * (self.conv_kernel - 1)
        return (state + convolution) * dtype_bytes / tp
