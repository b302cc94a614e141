"""LoRA adapters over Megatron's parallel linear layers, with PEFT's names in and out.

All adapter weights of a rank are views of one flat float32 vector, and their gradients of another: an
optimizer step and a norm are one operation, and a snapshot is one copy. A fused layer (``linear_qkv``,
``linear_fc1``) has one A with the rows of all its parts stacked, so it is read once, and one B per part; in
the flat vector they are ordered so that every tensor PEFT knows is a contiguous run of it.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from art_trainer.errors import ModelLoadError, SpecError
from art_trainer.layout import FusedLayout
from art_trainer.models.base import ModelDescription
from art_trainer.specs import LoraSpec

_ALIGNMENT = 16  # elements, so that every tensor starts on a cache line


class LoraLinear(torch.nn.Module):
    """``base(x) + scale * B A x`` for the targeted parts of one Megatron linear layer."""

    def __init__(
        self, base: torch.nn.Module, layout: FusedLayout, targeted: tuple[bool, ...], lora: LoraSpec
    ) -> None:
        """Wraps ``base``; the adapter's weights are empty until :meth:`bind`."""
        super().__init__()
        self.base = base
        self.layout = layout
        self.targeted = targeted
        self.rank = lora.rank
        self.scale = lora.scale
        weight = base.weight
        assert isinstance(weight, Tensor)
        self.in_features = weight.shape[1]
        self.lora_a = torch.nn.Parameter(torch.empty(0))
        self.lora_b = torch.nn.ParameterList()

    def bind(self, lora_a: Tensor, lora_b: list[Tensor]) -> None:
        """Takes ``[parts * rank, in]`` and ``[rows, rank]`` per targeted part as the adapter's storage."""
        self.lora_a = torch.nn.Parameter(lora_a)
        self.lora_b = torch.nn.ParameterList([torch.nn.Parameter(part) for part in lora_b])

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Megatron's contract: the output and the bias that it did not add."""
        output, bias = self.base(x, *args, **kwargs)
        reduced = x.reshape(-1, x.shape[-1]).to(self.lora_a.dtype) @ self.lora_a.t()
        flat = output.reshape(-1, output.shape[-1])
        expansion = self._fused_b().t()
        if flat.dtype == expansion.dtype:
            total = torch.addmm(flat, reduced, expansion, alpha=self.scale)
        else:
            total = flat + (reduced @ expansion * self.scale).to(flat.dtype)
        return total.view_as(output), bias

    def _fused_b(self) -> Tensor:
        """B of the fused layer ``[total_rows, parts * rank]``: each part reads its own ``rank`` columns only.

        One product with the zeros in it costs less than one per part, since ``rank`` is small, and needs no
        concatenation of activations.
        """
        parts: list[Tensor] = list(self.lora_b)
        count = len(parts)
        if len(self.layout.rows) == 1:
            return parts[0]
        padded, column = [], 0
        for rows, targeted in zip(self.layout.rows, self.targeted, strict=True):
            if targeted:
                left, right = column * self.rank, (count - 1 - column) * self.rank
                padded.append(torch.nn.functional.pad(parts[column], (left, right)))
                column += 1
            else:
                padded.append(self.lora_a.new_zeros(rows, count * self.rank))
        return self.layout.merge(padded)


@dataclass(frozen=True)
class _Placed:
    """One PEFT tensor inside the flat vector, in elements."""

    name: str
    offset: int
    shape: tuple[int, int]


class Adapter:
    """Owns the flat weights and gradients of every :class:`LoraLinear` of a model.

    Invariant: a layer's parameters and their ``.grad`` are views of :attr:`weights` and :attr:`gradients`
    for as long as the adapter lives; neither is ever replaced, only written.
    """

    def __init__(self, layers: list[LoraLinear], lora: LoraSpec) -> None:
        """Lays the tensors out and binds every layer to its views."""
        self.lora = lora
        self._placed: list[_Placed] = []
        plans, offset = [], 0
        for layer in layers:
            offset, plan = self._place(layer, offset)
            plans.append(plan)
        self.weights = torch.zeros(offset)
        self.gradients = torch.zeros(offset)
        for layer, (a_offset, b_offsets) in zip(layers, plans, strict=True):
            shapes = [(a_offset, (len(b_offsets) * lora.rank, layer.in_features)), *b_offsets]
            views = [self._view(self.weights, at, shape) for at, shape in shapes]
            layer.bind(views[0], views[1:])
            for parameter, (at, shape) in zip([layer.lora_a, *layer.lora_b], shapes, strict=True):
                parameter.grad = self._view(self.gradients, at, shape)

    def _place(
        self, layer: LoraLinear, offset: int
    ) -> tuple[int, tuple[int, list[tuple[int, tuple[int, int]]]]]:
        rank = self.lora.rank
        parts = [
            (n, r) for n, r, t in zip(layer.layout.names, layer.layout.rows, layer.targeted, strict=True) if t
        ]
        a_offset = offset
        for name, _ in parts:  # stacked without gaps: together they are the fused A
            self._placed.append(_Placed(_peft_name(name, "lora_A"), offset, (rank, layer.in_features)))
            offset += rank * layer.in_features
        offset = _aligned(offset)
        b_places = []
        for name, rows in parts:
            self._placed.append(_Placed(_peft_name(name, "lora_B"), offset, (rows, rank)))
            b_places.append((offset, (rows, rank)))
            offset = _aligned(offset + rows * rank)
        return offset, (a_offset, b_places)

    @staticmethod
    def _view(flat: Tensor, offset: int, shape: tuple[int, int]) -> Tensor:
        return flat[offset : offset + shape[0] * shape[1]].view(shape)

    @property
    def parameter_count(self) -> int:
        """Trained elements, the gaps between tensors not counted."""
        return sum(placed.shape[0] * placed.shape[1] for placed in self._placed)

    def named_tensors(self, flat: Tensor | None = None) -> Iterator[tuple[str, Tensor]]:
        """Views of :attr:`weights` (or of another vector of its layout) under PEFT's names."""
        for placed in self._placed:
            yield placed.name, self._view(self.weights if flat is None else flat, placed.offset, placed.shape)

    @torch.no_grad()
    def reset(self, seed: int) -> None:
        """Version 0: A uniform in ``±1 / sqrt(in)`` (PEFT's own initialization), B zero, no gradients."""
        generator = torch.Generator().manual_seed(seed)
        self.gradients.zero_()
        self.weights.zero_()
        for name, tensor in self.named_tensors():
            if ".lora_A." in name:
                bound = 1 / math.sqrt(tensor.shape[1])
                tensor.uniform_(-bound, bound, generator=generator)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes an adapter under PEFT's names.

        Raises:
            ModelLoadError: names or shapes differ from this adapter's.
        """
        mine = dict(self.named_tensors())
        if set(mine) != set(tensors):
            different = sorted(set(mine) ^ set(tensors))
            raise ModelLoadError(
                f"the adapter and the model differ in {len(different)} tensors, such as {different[0]}"
            )
        for name, tensor in tensors.items():
            if tensor.shape != mine[name].shape:
                raise ModelLoadError(
                    f"{name} has shape {tuple(tensor.shape)}; "
                    f"rank {self.lora.rank} needs {tuple(mine[name].shape)}"
                )
            mine[name].copy_(tensor)

    def peft_config(self, base_model_name: str) -> str:
        """The text of ``adapter_config.json`` as PEFT and vLLM read it."""
        return json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "base_model_name_or_path": base_model_name,
                "r": self.lora.rank,
                "lora_alpha": int(alpha) if (alpha := self.lora.alpha).is_integer() else alpha,
                "lora_dropout": 0.0,
                "bias": "none",
                "fan_in_fan_out": False,
                "inference_mode": True,
                "init_lora_weights": True,
                "modules_to_save": None,
                "target_modules": sorted(self.lora.target_modules),
                "use_rslora": False,
                "use_dora": False,
            },
            indent=2,
        )


def add_adapter(model: torch.nn.Module, description: ModelDescription, lora: LoraSpec) -> Adapter:
    """Freezes the model and wraps its targeted linear layers; the adapter starts with zero weights.

    Raises:
        SpecError: ``lora`` names a layer that the family cannot adapt.
    """
    unknown = [name for name in lora.target_modules if name not in description.targets]
    if unknown:
        raise SpecError(
            f"LoraSpec.target_modules names {', '.join(unknown)}; "
            f"this model has {', '.join(description.targets)}"
        )
    model.requires_grad_(False)
    layers = []
    for name, layout in description.weights.items():
        targeted = tuple(_leaf(part) in lora.target_modules for part in layout.names)
        if any(targeted):
            path = name.removesuffix(".weight")
            parent = model.get_submodule(path.rpartition(".")[0])
            layer = LoraLinear(model.get_submodule(path), layout, targeted, lora)
            setattr(parent, path.rpartition(".")[2], layer)
            layers.append(layer)
    return Adapter(layers, lora)


def _leaf(parameter_name: str) -> str:
    return parameter_name.removesuffix(".weight").rpartition(".")[2]


def _peft_name(parameter_name: str, part: str) -> str:
    return f"base_model.model.{parameter_name.removesuffix('.weight')}.{part}.weight"


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
