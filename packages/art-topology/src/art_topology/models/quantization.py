"""How a service's weights are stored: quantized numbers with their scales, or numbers of the dtype.

Only what serves a model reads this. A trainer holds every weight in the dtype of the workload.
"""

import math

import msgspec

from art_topology.models.matrices import Matrix, Part

__all__ = [
    "DECLARED",
    "Formats",
    "Quantization",
    "WeightFormat",
    "declared_quantization",
    "stored_bytes",
]


class WeightFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of a few bits, of which a group shares a scale.

    Args:
        name: Such as ``fp8`` or ``int4``.
        bits: Of a weight.
        rows: Outputs of a group; 0: all.
        columns: Inputs of a group; 0: all.
        scale_bytes: Of the scale of a group, in bytes.
        zero_bits: Of the zero point of a group; 0: there is none.
        input_bytes: Of an index for each input, in bytes (``g_idx`` of GPTQ).
    """

    name: str
    bits: int
    rows: int
    columns: int
    scale_bytes: int
    zero_bits: int = 0
    input_bytes: int = 0

    @property
    def told(self) -> str:
        """Such as "fp8 in blocks of 128 x 128" or "int4 in groups of 32"."""
        if self.rows > 1 and self.columns:
            return f"{self.name} in blocks of {self.rows} x {self.columns}"
        if self.columns:
            return f"{self.name} in groups of {self.columns}"
        return f"{self.name} with a scale for each {'output' if self.rows else 'matrix'}"

    def bytes_of(self, matrix: Matrix) -> int:
        """Bytes of the weights of a matrix (or of a rank's share of it) with their scales, without biases."""
        groups = math.ceil(matrix.outputs / self.rows) if self.rows else 1
        groups *= math.ceil(matrix.inputs / self.columns) if self.columns else 1
        each = math.ceil((matrix.inputs * matrix.outputs * self.bits + groups * self.zero_bits) / 8)
        return matrix.copies * (each + groups * self.scale_bytes + matrix.inputs * self.input_bytes)


Formats = tuple[tuple[str, WeightFormat], ...]
"""The quantized matrices of a layer by name; the others have the dtype."""


class Quantization(msgspec.Struct, frozen=True, kw_only=True):
    """Which weights of a model are quantized, and how.

    Args:
        source: Who says so, in words.
        layers: For each decoder layer, and then for each of multi-token prediction, its quantized matrices.
        output: The form of the vocabulary head; None: the dtype.
        told: What is quantized and how, in words.
        unread: Why it is not known what is quantized; the weights then have the dtype.
    """

    source: str
    layers: tuple[Formats, ...] = ()
    output: WeightFormat | None = None
    told: str = ""
    unread: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the forms that occur."""
        formats = {fmt for layer in set(self.layers) for _, fmt in layer}
        if self.output is not None:
            formats.add(self.output)
        return tuple(sorted({fmt.name for fmt in formats}))

    def of_layer(self, index: int) -> Formats:
        """The quantized matrices of a layer.

        Args:
            index: Of the layer; those of multi-token prediction come after the decoder's.
        """
        return self.layers[index] if index < len(self.layers) else ()


def stored_bytes(matrix: Matrix, formats: Formats, dtype_bytes: int) -> int:
    """Bytes of a matrix, or of a rank's share of it, as it is stored.

    Args:
        matrix: The matrix.
        formats: Of its layer.
        dtype_bytes: Of a number that is not quantized; biases never are.
    """
    for name, fmt in formats:
        if name == matrix.name:
            biases = matrix.copies * matrix.outputs if matrix.bias else 0
            return fmt.bytes_of(matrix) + biases * dtype_bytes
    return matrix.parameter_count * dtype_bytes


QUANTIZED: frozenset[Part] = frozenset(
    ("attention", "indexer", "dense_mlp", "routed_experts", "shared_experts")
)
"""Parts whose matrices quantization takes where nothing else is said: linear layers of decoder layers, not
embeddings, norms, routers and the vocabulary head."""
KEPT = frozenset(
    (
        "compressor_gate",
        "compressor_kv",
        "indexer_gate",
        "indexer_kv",
        "indexer_weights",
        "linear_ba",
        "shared_output_gate",
    )
)
"""Small matrices of these parts that published checkpoints and vLLM leave in the dtype."""

DECLARED: dict[str, WeightFormat] = {
    "fp8": WeightFormat(name="fp8", bits=8, rows=128, columns=128, scale_bytes=4),
    "mxfp4": WeightFormat(name="mxfp4", bits=4, rows=1, columns=32, scale_bytes=1),
    "nvfp4": WeightFormat(name="nvfp4", bits=4, rows=1, columns=16, scale_bytes=1),
    "int8": WeightFormat(name="int8", bits=8, rows=1, columns=0, scale_bytes=2),
    "int4": WeightFormat(name="int4", bits=4, rows=1, columns=128, scale_bytes=2),
}
"""The forms as they are usual, for weights that only a service declares."""


def can_be_quantized(matrix: Matrix) -> bool:
    """Whether quantization takes the matrix where nothing else is said."""
    return matrix.part in QUANTIZED and matrix.name not in KEPT


_WORDS: dict[str, str] = {
    "attention": "attention",
    "indexer": "indexer",
    "dense_mlp": "dense MLP",
    "routed_experts": "routed experts",
    "shared_experts": "shared experts",
    "output": "vocabulary head",
}


def told_of(layers: tuple[tuple[tuple[Matrix, ...], Formats], ...], output: WeightFormat | None) -> str:
    """What is quantized, in words: each form with the parts that it takes."""
    parts: dict[WeightFormat, dict[str, None]] = {}
    for matrices, formats in dict.fromkeys(layers):
        form = dict(formats)
        for matrix in matrices:
            if matrix.name in form:
                parts.setdefault(form[matrix.name], {})[_WORDS[matrix.part]] = None
    if output is not None:
        parts.setdefault(output, {})[_WORDS["output"]] = None
    return "; ".join(f"{fmt.told}: {', '.join(words)}" for fmt, words in parts.items())


def declared_quantization(name: str, layers: tuple[tuple[Matrix, ...], ...], source: str) -> Quantization:
    """The usual form of that name: every linear layer of the decoder layers, or with ``mxfp4`` the routed
    experts, where there are any.

    Args:
        name: The form, one of :data:`DECLARED`.
        layers: The matrices of each layer.
        source: Who says so.
    """
    fmt = DECLARED[name]
    experts = name == "mxfp4" and any(m.part == "routed_experts" for layer in layers for m in layer)
    chosen: dict[tuple[Matrix, ...], Formats] = {}
    for layer in layers:
        if layer not in chosen:
            chosen[layer] = tuple(
                (matrix.name, fmt)
                for matrix in layer
                if (matrix.part == "routed_experts" if experts else can_be_quantized(matrix))
            )
    formats = tuple(chosen[layer] for layer in layers)
    told = told_of(tuple(zip(layers, formats, strict=True)), None)
    return Quantization(source=source, layers=formats, told=told)
