"""Base weights between a safetensors folder in Hugging Face's layout and a Megatron model.

Every parameter of the model is written exactly once and every tensor of the folder is used, or loading fails.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from art_trainer.errors import ModelLoadError
from art_trainer.layout import FusedLayout

_IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)


def weight_files(model_path: str) -> list[Path]:
    """The safetensors files of a model folder, from its index when it has one.

    Raises:
        ModelLoadError: there are none, or the index names one that is missing.
    """
    folder = Path(model_path)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    else:
        files = sorted(folder.glob("*.safetensors"))
    missing = [str(file) for file in files if not file.is_file()]
    if missing or not files:
        raise ModelLoadError(f"no safetensors weights in {folder}: {', '.join(missing) or 'no file matches'}")
    return files


def load_weights(
    model: torch.nn.Module, weights: Mapping[str, FusedLayout], tied: bool, model_path: str
) -> int:
    """Copies the folder's tensors into the model's parameters, converting dtypes; returns how many elements.

    ``weights`` says what each Megatron parameter is made of; with ``tied`` a stored ``lm_head.weight`` is
    ignored. One fused parameter's tensors are in memory at a time besides the model.

    Raises:
        ModelLoadError: a tensor is missing, unexpected or of another shape, or a parameter has no source.
    """
    parameters = dict(model.named_parameters())
    _same(
        set(parameters), set(weights), "Megatron parameters without a source", "sources without a parameter"
    )
    loaded = 0
    with _Tensors(weight_files(model_path)) as stored:
        wanted = {name for layout in weights.values() for name in layout.names}
        ignored = {name for name in stored.names if name.endswith(_IGNORED_SUFFIXES)}
        ignored |= {"lm_head.weight"} if tied else set()
        _same(
            stored.names - ignored,
            wanted,
            "unexpected tensors in the folder",
            "tensors missing from the folder",
        )
        for name, layout in weights.items():
            parts = [stored.get(part) for part in layout.names]
            for part, rows, tensor in zip(layout.names, layout.rows, parts, strict=True):
                expected = (rows, *parameters[name].shape[1:])
                if tensor.shape != expected:
                    raise ModelLoadError(
                        f"{part} has shape {tuple(tensor.shape)}; config.json says {expected}"
                    )
            fused = layout.merge(parts)
            with torch.no_grad():
                parameters[name].copy_(fused)
            loaded += fused.numel()
    return loaded


def export_weights(model: torch.nn.Module, weights: Mapping[str, FusedLayout]) -> dict[str, Tensor]:
    """The base weights under their Hugging Face names; tensors may be views of the model's."""
    parameters = dict(model.named_parameters())
    return {
        part: tensor
        for name, layout in weights.items()
        for part, tensor in zip(layout.names, layout.split(parameters[name].detach()), strict=True)
    }


def _same(left: set[str], right: set[str], only_left: str, only_right: str) -> None:
    for extra, what in ((left - right, only_left), (right - left, only_right)):
        if extra:
            shown = ", ".join(sorted(extra)[:8]) + (" ..." if len(extra) > 8 else "")
            raise ModelLoadError(f"{len(extra)} {what}: {shown}")


class _Tensors:
    """Open safetensors files as one mapping."""

    def __init__(self, files: list[Path]) -> None:
        self._files: list[Any] = []
        for file in files:
            try:
                self._files.append(safe_open(file, framework="pt"))
            except SafetensorError as error:
                raise ModelLoadError(f"{file} is not a safetensors file: {error}") from error
        self._owner: dict[str, Any] = {name: opened for opened in self._files for name in opened.keys()}  # noqa: SIM118 (it is no mapping)
        self.names = set(self._owner)

    def get(self, name: str) -> Tensor:
        tensor: Tensor = self._owner[name].get_tensor(name)
        return tensor

    def __enter__(self) -> "_Tensors":
        return self

    def __exit__(self, *_: object) -> None:
        self._owner.clear()
        self._files.clear()
