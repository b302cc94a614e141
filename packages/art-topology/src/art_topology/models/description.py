"""A whole language model as the shapes of its layers; nothing in it depends on the model's name."""

import msgspec

from art_topology.models.attention import GqaShape, MlaShape
from art_topology.models.compressed import CompressedAttentionShape
from art_topology.models.linear import GatedDeltaNetShape
from art_topology.models.matrices import Matrix, Vector
from art_topology.models.mlp import DenseShape, MoeShape
from art_topology.models.quantization import (
    Formats,
    Quantization,
    declared_quantization,
    stored_bytes,
)
from art_topology.serving import ServedWeights

AttentionShape = GqaShape | MlaShape | CompressedAttentionShape | GatedDeltaNetShape
"""The attention of a layer. All have the same methods: what it holds, computes and caches."""

MlpShape = DenseShape | MoeShape
"""The feed-forward part of a layer."""


class LayerShape(msgspec.Struct, frozen=True, kw_only=True):
    """One decoder layer.

    Args:
        hidden_size: Features of the residual stream.
        attention: Its attention.
        mlp: Its feed-forward layer; None where the layer has only attention.
        norms: Norms of ``hidden_size`` weights each.
        streams: Residual streams that hyper-connections mix; 1: there are no hyper-connections.
        per_layer_size: Features of an embedding of its own that the layer adds for each token; 0: none.
        joins: It predicts further tokens: it first joins the normalized stream and embedding of a token
            (multi-token prediction), and ends with a norm.
    """

    hidden_size: int
    attention: AttentionShape
    mlp: MlpShape | None
    norms: int = 2
    streams: int = 1
    per_layer_size: int = 0
    joins: bool = False

    def matrices(self) -> tuple[Matrix, ...]:
        """All linear maps of the layer."""
        hidden, found = self.hidden_size, [*self.attention.matrices()]
        if self.mlp is not None:
            found += self.mlp.matrices()
        if self.streams > 1:
            mixing = Matrix(
                name="hyper_connection",
                part="other",
                inputs=self.streams * hidden,
                outputs=(2 + self.streams) * self.streams,
                copies=2,
                active=2,
                adapted=False,
            )
            found.append(mixing)
        if self.per_layer_size:
            gate = Matrix(
                name="per_layer_gate", part="other", inputs=hidden, outputs=self.per_layer_size, adapted=False
            )
            back = Matrix(
                name="per_layer_back", part="other", inputs=self.per_layer_size, outputs=hidden, adapted=False
            )
            found += [gate, back]
        if self.joins:
            found.append(
                Matrix(
                    name="mtp_join",
                    part="other",
                    inputs=2 * hidden,
                    outputs=hidden,
                    divided="columns",
                    adapted=False,
                )
            )
        return tuple(found)

    def vectors(self) -> tuple[Vector, ...]:
        """All other weights of the layer."""
        norms = self.norms + (1 if self.per_layer_size else 0) + (3 if self.joins else 0)
        found = [*self.attention.vectors(), *(self.mlp.vectors() if self.mlp else ())]
        found.append(Vector(name="layer_norms", part="norms", size=norms * self.hidden_size))
        if self.streams > 1:
            size = 2 * ((2 + self.streams) * self.streams + 3)
            found.append(Vector(name="hyper_connection_base", part="other", size=size))
        return tuple(found)

    @property
    def parameter_count(self) -> int:
        """Parameters of the layer, biases included."""
        return sum(m.parameter_count for m in self.matrices()) + sum(v.size for v in self.vectors())

    def flops_per_token(self, context_tokens: float) -> float:
        """Forward FLOPs of one token, mean over a causal sequence of ``context_tokens`` tokens."""
        linear = sum(matrix.forward_flops for matrix in self.matrices())
        return (
            linear + self.attention.core_flops(context_tokens) + self.attention.indexer_flops(context_tokens)
        )

    def kv_bytes_per_token(self, dtype_bytes: float, tp: int = 1) -> float:
        """Bytes that one of ``tp`` workers caches for one token of the context, in numbers of
        ``dtype_bytes``."""
        return self.attention.kv_bytes_per_token(dtype_bytes, tp)

    @property
    def is_moe(self) -> bool:
        """Whether it has routed experts."""
        return isinstance(self.mlp, MoeShape)


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only language model (the text part of a multimodal one).

    Args:
        model_type: As its configuration names it; for messages only.
        hidden_size: Features of the residual stream.
        vocab_size: Tokens of the vocabulary.
        tied_embeddings: The vocabulary head is the embedding.
        max_position_embeddings: Longest context it was made for, in tokens; None if the configuration is
            silent.
        position_scale: By how much the rotary scaling of the configuration multiplies those.
        layers: Its decoder layers, in order.
        mtp_layers: Layers that predict further tokens (multi-token prediction); not part of ``parameters``'
            total, as checkpoints count them.
        per_layer_vocab_size: Vocabulary of the per-layer embeddings; 0: there are none.
        per_layer_size: Features of each per-layer embedding; 0: there are none.
        assumptions: What the configuration leaves open and how it was read, one sentence each.
        quantization: Which weights its checkpoint has quantized, and how; None: none. It counts for services
            only: a trainer holds every weight in its dtype.
    """

    model_type: str
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool
    max_position_embeddings: int | None
    layers: tuple[LayerShape, ...]
    mtp_layers: tuple[LayerShape, ...] = ()
    per_layer_vocab_size: int = 0
    per_layer_size: int = 0
    position_scale: float = 1.0
    assumptions: tuple[str, ...] = ()
    quantization: Quantization | None = None

    @property
    def kv_heads(self) -> int | None:
        """Fewest key and value heads of a layer with grouped queries; None where no layer has them."""
        shapes = (layer.attention for layer in self.layers)
        return min((shape.kv_heads for shape in shapes if isinstance(shape, GqaShape)), default=None)

    @property
    def experts(self) -> int | None:
        """Routed experts of a layer; None for a dense model."""
        mlps = (layer.mlp for layer in self.layers)
        return max((mlp.experts for mlp in mlps if isinstance(mlp, MoeShape)), default=None)

    def kv_bytes_per_token(self, dtype_bytes: float, tp: int = 1) -> float:
        """Bytes that one of ``tp`` workers caches for one token of a long context, in numbers of
        ``dtype_bytes``, over all layers; layers that keep only a window, and states of fixed size, are not in
        it."""
        return sum(
            layer.kv_bytes_per_token(dtype_bytes, tp)
            for layer in self.layers
            if layer.attention.kv_window_tokens is None
        )

    def stored_layers(self) -> tuple[tuple[LayerShape, Formats], ...]:
        """The decoder layers, each with its quantized matrices."""
        if self.quantization is None:
            return tuple((layer, ()) for layer in self.layers)
        return tuple((layer, self.quantization.of_layer(i)) for i, layer in enumerate(self.layers))

    @property
    def output_formats(self) -> Formats:
        """The vocabulary head, if it is quantized."""
        output = self.quantization.output if self.quantization is not None else None
        return () if output is None else (("output", output),)

    def with_weights(self, weights: ServedWeights) -> "ModelDescription":
        """The model with its weights stored as a service says; what the configuration says of that form in
        detail stays.

        Args:
            weights: What the service says; ``auto`` changes nothing.
        """
        known = self.quantization
        if weights == "auto" or (known is not None and weights in known.names):
            return self
        if weights == "unquantized":
            return msgspec.structs.replace(self, quantization=None) if known is not None else self
        layers = tuple(layer.matrices() for layer in (*self.layers, *self.mtp_layers))
        declared = declared_quantization(weights, layers, f'weights = "{weights}"')
        return msgspec.structs.replace(self, quantization=declared)

    def embedding_matrices(self) -> tuple[Matrix, ...]:
        """Linear maps before the first layer: the projection that makes per-layer inputs."""
        if not self.per_layer_size:
            return ()
        width = len(self.layers) * self.per_layer_size
        return (
            Matrix(
                name="per_layer_projection",
                part="other",
                inputs=self.hidden_size,
                outputs=width,
                adapted=False,
            ),
        )

    def embedding_vectors(self) -> tuple[Vector, ...]:
        """Tables of the embedding: the vocabulary's, and the per-layer one with its norm."""
        found = [
            Vector(name="embedding", part="embedding", size=self.vocab_size * self.hidden_size, divided=True)
        ]
        if self.per_layer_size:
            width = len(self.layers) * self.per_layer_size
            found.append(
                Vector(
                    name="per_layer_embedding",
                    part="embedding",
                    size=self.per_layer_vocab_size * width,
                    divided=True,
                )
            )
            found.append(Vector(name="per_layer_norm", part="norms", size=self.per_layer_size))
        return tuple(found)

    def head_matrices(self) -> tuple[Matrix, ...]:
        """The vocabulary head (the embedding's weights again where they are tied), and before it the mixing
        of residual streams."""
        head = Matrix(
            name="output",
            part="output",
            inputs=self.hidden_size,
            outputs=self.vocab_size,
            divided="columns",
        )
        if self.streams == 1:
            return (head,)
        mixing = Matrix(
            name="hyper_head",
            part="other",
            inputs=self.streams * self.hidden_size,
            outputs=self.streams,
            adapted=False,
        )
        return (mixing, head)

    def head_vectors(self) -> tuple[Vector, ...]:
        """The final norm, and the bias and scale of the mixing of residual streams."""
        norm = Vector(name="final_norm", part="norms", size=self.hidden_size)
        if self.streams == 1:
            return (norm,)
        return (norm, Vector(name="hyper_head_base", part="other", size=self.streams + 1))

    @property
    def streams(self) -> int:
        """Residual streams between the layers."""
        return max((layer.streams for layer in self.layers), default=1)


def checkpoint_bytes(model: ModelDescription, dtype_bytes: int, *, mtp: bool = False) -> int:
    """Bytes of the tensors of a model's checkpoint, as it is quantized.

    Args:
        model: The model.
        dtype_bytes: Of a number that is not quantized, in bytes.
        mtp: With the layers of multi-token prediction (without what they share with the model).
    """
    quantization = model.quantization
    layers = (*model.layers, *(model.mtp_layers if mtp else ()))
    total = 0
    for index, layer in enumerate(layers):
        formats: Formats = quantization.of_layer(index) if quantization is not None else ()
        total += sum(stored_bytes(matrix, formats, dtype_bytes) for matrix in layer.matrices())
        total += dtype_bytes * sum(vector.size for vector in layer.vectors())
    for matrix in (*model.embedding_matrices(), *model.head_matrices()):
        if not (matrix.name == "output" and model.tied_embeddings):
            total += stored_bytes(matrix, model.output_formats, dtype_bytes)
    ends = (*model.embedding_vectors(), *model.head_vectors())
    return total + dtype_bytes * sum(vector.size for vector in ends)
