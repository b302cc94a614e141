"""Whether a model's weights are those that its ``config.json`` describes, before anything is loaded.

The trainer's own description of the model says which tensors it is made of; their names and shapes are
compared with the headers of the weight files.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.checks.model_files import StoredTensor, listed, read_weights, trainable_dtype
from art.checks.results import Check, failed, passed
from art.errors import ConfigError

if TYPE_CHECKING:
    from art_trainer.models import ModelDescription

type Shape = tuple[int, ...]

_OUTPUT = "lm_head.weight"
_UNUSED_SUFFIX = "rotary_emb.inv_freq"
"""Of tensors that older files hold and no program reads."""
_REMEDY = "fetch the model again, whole, or take the config.json that belongs to these weights"


def model_checks(folder: Path) -> list[Check]:
    """Whether the trainer covers the model of ``folder``, and its weights are what ``config.json`` says.

    Nothing where no trainer is installed. ``folder`` has a ``config.json`` and weight files.
    """
    if importlib.util.find_spec("art_trainer") is None:
        return []
    from art_trainer import TrainerError
    from art_trainer.models import describe_model, read_config

    try:
        config = read_config(str(folder))
        description = describe_model(config)
    except TrainerError as error:
        return [failed("model family", str(error), remedy="choose a model of a family that is covered")]
    except (OSError, UnicodeDecodeError) as error:
        return [failed("model family", f"{folder / 'config.json'} cannot be read: {error}", remedy=_REMEDY)]
    except (TypeError, ValueError, ArithmeticError, AttributeError, KeyError) as error:
        found = f"{folder / 'config.json'} has a value of a wrong kind: {error}"
        return [failed("model family", found, remedy=_REMEDY)]
    if not isinstance(config.get("model_type"), str):
        found = f"{folder / 'config.json'} has no model_type, by which vLLM knows the model"
        return [failed("model family", found, remedy=_REMEDY)]
    return [passed("model family", "covered"), weights_check(folder, expected_shapes(description))]


def weights_check(folder: Path, expected: Mapping[str, Shape]) -> Check:
    """Whether the weight files of ``folder`` hold exactly the tensors of ``expected``.

    Args:
        folder: with ``*.safetensors``, and ``model.safetensors.index.json`` where they are several.
        expected: the shape of every tensor by its Hugging Face name; without ``lm_head.weight`` for a model
            whose output projection is its embedding, where a stored one is not used.
    """
    try:
        stored = read_weights(folder)
    except ConfigError as error:
        return failed("weights", str(error), remedy=_REMEDY)
    problem = weights_problem(stored, expected)
    if problem is not None:
        return failed("weights", f"{folder}: {problem}", remedy=_REMEDY)
    return passed("weights", f"{len(expected)} tensors, as config.json describes them")


def weights_problem(stored: Mapping[str, StoredTensor], expected: Mapping[str, Shape]) -> str | None:
    """The difference between what is stored and what the configuration describes, or None.

    Shapes come first, since what is missing or not expected may follow from a wrong size.
    """
    there = [name for name in expected if name in stored]
    differences = {
        "of another shape": [name for name in there if stored[name].shape != expected[name]],
        "missing": [name for name in expected if name not in stored],
        "not expected": [name for name in stored if name not in expected and not _is_unused(name, expected)],
        "of a dtype that is not trained": [name for name in there if not trainable_dtype(stored[name].dtype)],
    }
    for what, names in differences.items():
        if names:
            more = f"; so are {len(names) - 1} more: {listed(names[1:])}" if len(names) > 1 else ""
            return f"{names[0]} is {what}: {_told(names[0], stored, expected)}{more}"
    return None


def _is_unused(name: str, expected: Mapping[str, Shape]) -> bool:
    return name.endswith(_UNUSED_SUFFIX) or (name == _OUTPUT and _OUTPUT not in expected)


def _told(name: str, stored: Mapping[str, StoredTensor], expected: Mapping[str, Shape]) -> str:
    there = stored.get(name)
    wanted = f"config.json says {list(expected[name])}" if name in expected else "config.json describes none"
    if there is None:
        if name == _OUTPUT:
            wanted += " and tie_word_embeddings false; true if its embedding is its output projection"
        return f"the files have none, {wanted}"
    return f"{there.dtype} {list(there.shape)} in {there.file.name}, {wanted}"


def expected_shapes(description: "ModelDescription") -> dict[str, Shape]:
    """The shape of every tensor that a model is made of, by its Hugging Face name."""
    options = description.options
    shapes: dict[str, Shape] = {}
    for parameter, layout in description.weights.items():
        columns = _columns(parameter, options)
        shapes |= {name: (rows, *columns) for name, rows in zip(layout.names, layout.rows, strict=True)}
    return shapes


def _columns(parameter: str, options: Mapping[str, Any]) -> Shape:
    """What follows the rows in the shape of a Megatron parameter: the width of its layer's input."""
    module = parameter.split(".")[-2]
    if module.endswith("layernorm"):
        return ()
    if module == "linear_proj":
        return (options["num_attention_heads"] * options["kv_channels"],)
    if module == "linear_fc2":
        return (options["ffn_hidden_size"],)
    return (options["hidden_size"],)
