"""From a Hugging Face ``config.json`` to a :class:`ModelDescription`, by its fields."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from art_topology.models.attention_fields import read_attention
from art_topology.models.conventions import Convention, convention_of
from art_topology.models.description import LayerShape, ModelDescription
from art_topology.models.fields import Fields, ModelConfigError
from art_topology.models.mlp import MoeShape
from art_topology.models.mlp_fields import read_mlps
from art_topology.models.quantization_fields import read_quantization
from art_topology.models.unread import UNREAD, refuse_encoders, refuse_unread
from art_topology.readers import read_json, source_of
from art_topology.reading import read_regular
from art_topology.spec import SpecError

__all__ = ["ModelConfigError", "load_model_config"]

_MOST_LAYERS = 16_384
"""More than any model has; what stands for a layer is kept in memory for each of them."""
_JSON_NAMES = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
_MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
_SCALED_ALREADY = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Kinds of position scaling of which ``max_position_embeddings`` is the result."""
_TEXT = ("text_config", "llm_config", "language_config")
_AROUND = ("tie_word_embeddings", "model_type", "quantization_config")
"""Fields that count for the text part where only the whole has them."""


def load_model_config(source: str | Path | Mapping[str, Any]) -> ModelDescription:
    """Reads a configuration: ``source`` is the parsed ``config.json``, or a path to it or to its folder.

    Of a multimodal configuration the text part is read (``text_config``). ``model_type`` only selects how
    fields are read where families differ; one that has not been seen is read like most models, and
    ``ModelDescription.assumptions`` says what was taken for granted.

    Raises:
        ModelConfigError: fields are missing or contradict each other; every one of them is named.
        OSError: the file cannot be read, is no regular file, or has more than 64 MiB.
    """
    values = _text_part(source if isinstance(source, Mapping) else _parsed(Path(source)))
    fields = Fields(values)
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        fields.assume("No model_type: read like most models.")
        model_type = "unnamed"
    if values.get("num_attention_heads") is None and values.get("n_head") is not None:
        raise ModelConfigError(
            [
                f"n_head is set: {model_type!r} has layers as GPT-2 (learned positions or ALiBi), which "
                "cannot be planned yet; models with num_attention_heads can"
            ]
        )
    convention = convention_of(model_type)
    for name, meaning in UNREAD.items():
        if fields.raw(name):
            fields.problem(f"{name} is set, which cannot be planned yet: {meaning}")
    refuse_encoders(fields, model_type)
    if not convention.known:
        fields.assume(
            f"model_type {model_type!r} has not been seen: its fields are read as most models mean them."
        )
    model = _described(fields, convention, model_type)
    refuse_unread(fields)
    fields.finish()
    return model


def _described(fields: Fields, convention: Convention, model_type: str) -> ModelDescription:
    hidden = fields.count(("hidden_size", "n_embd", "d_model"), "features of the residual stream")
    count = fields.count(("num_hidden_layers", "n_layer"), "decoder layers", most=_MOST_LAYERS)
    attention = read_attention(fields, convention, hidden, count)
    mlps = read_mlps(fields, convention, hidden, count)
    streams = fields.count("hc_mult", "residual streams of hyper-connections", 1)
    per_layer = fields.count("hidden_size_per_layer_input", "features of per-layer embeddings", 0, least=0)
    vocabulary = fields.count("vocab_size", "tokens of the vocabulary")

    def layer(index: int, joins: bool = False) -> LayerShape:
        mlp = mlps[index]
        return LayerShape(
            hidden_size=hidden,
            attention=attention[index],
            mlp=mlp,
            norms=convention.norms + (convention.moe_norms if isinstance(mlp, MoeShape) else 0),
            streams=streams,
            per_layer_size=per_layer,
            joins=joins,
        )

    model = ModelDescription(
        model_type=model_type,
        hidden_size=hidden,
        vocab_size=vocabulary,
        tied_embeddings=fields.flag(
            "tie_word_embeddings", "the vocabulary head is the embedding", convention.tied
        ),
        max_position_embeddings=fields.maybe_count("max_position_embeddings", "longest context, in tokens"),
        position_scale=_position_scale(fields, model_type),
        layers=tuple(layer(index) for index in range(count)),
        mtp_layers=(layer(count, joins=True),)
        * fields.count(_MTP, "layers of multi-token prediction", 0, least=0, most=_MOST_LAYERS),
        per_layer_vocab_size=fields.count(
            "vocab_size_per_layer_input", "vocabulary of per-layer embeddings", vocabulary
        )
        if per_layer
        else 0,
        per_layer_size=per_layer,
        assumptions=fields.assumptions,
    )
    head = model.head_matrices()[-1]
    quantization = read_quantization(fields.values, model.layers, model.mtp_layers, head)
    return msgspec.structs.replace(model, quantization=quantization)


def _position_scale(fields: Fields, model_type: str) -> float:
    """By how much vLLM multiplies the positions (``_get_and_verify_max_len``)."""
    scaling = fields.raw(("rope_parameters", "rope_scaling"))
    if not isinstance(scaling, Mapping) or "gemma3" in model_type:
        return 1.0
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = scaling.get("factor")
    if kind in _SCALED_ALREADY or not isinstance(factor, int | float) or not 1 <= factor <= 2**20:
        return 1.0
    return float(factor)


def _text_part(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text part; what the whole says where the part is silent."""
    for name in _TEXT:
        part = values.get(name)
        if isinstance(part, Mapping):
            around = {k: values[k] for k in _AROUND if k in values}
            return {**around, **part}
    return values


def _parsed(path: Path) -> Mapping[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise FileNotFoundError(2, "the folder has no config.json", str(path))
    data = read_regular(file)
    try:
        values = read_json(source_of(data.decode(), "json", str(file)), finite=False)
    except UnicodeDecodeError as error:
        reason = f"byte {data[error.start]:#04x} at offset {error.start} is not UTF-8"
        raise ModelConfigError([f"{file} is not JSON: {reason}"]) from None
    except SpecError as error:
        told = [f"{found.location or file}: {found.message}" for found in error.diagnostics]
        raise ModelConfigError(told) from None
    if not isinstance(values, Mapping):
        raise ModelConfigError(
            [f"{file} holds {_JSON_NAMES.get(type(values), 'nothing')}, not an object with fields"]
        )
    return values
