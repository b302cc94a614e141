"""What only this machine can tell, checked before a model is loaded."""

import json
import math
from pathlib import Path

import msgspec

from art_trainer import platform
from art_trainer.errors import ModelLoadError, PreflightError
from art_trainer.models.base import ModelDescription
from art_trainer.specs import TrainerRuntimeSpec
from art_trainer.weights import weight_files

_WORKING_BYTES = (
    512 << 20
)  # adapters, optimizer, snapshots in the making, and a chunk of logits with its copy
_SLACK = 1.5  # what the allocator took for a row's activations, over their sizes; measured
_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


class MemoryEstimate(msgspec.Struct, frozen=True):
    """Bytes that a rank takes at its peak: base weights, one row's activations, and everything else."""

    weights: int
    activations: int
    other: int

    @property
    def total(self) -> int:
        """The sum."""
        return self.weights + self.activations + self.other


def check_machine(spec: TrainerRuntimeSpec, description: ModelDescription) -> MemoryEstimate:
    """Checks threads, memory and layout.

    Raises:
        PreflightError: the machine or this version cannot do what ``spec`` asks.
    """
    sizes = {axis: getattr(spec.topology, axis) for axis in ("tp", "cp", "ep", "etp", "pp")}
    larger = {axis: size for axis, size in sizes.items() if size != 1}
    if larger or (spec.topology.vpp or 1) != 1:
        raise PreflightError(
            f"this version trains on one rank; the topology has {larger or {'vpp': spec.topology.vpp}}"
        )
    processors = platform.processor_count()
    if spec.threads > processors:
        raise PreflightError(
            f"TrainerRuntimeSpec.threads is {spec.threads}; this process may run on {processors} processors"
        )
    estimate = estimate_memory(spec, description)
    available = platform.available_bytes()
    if estimate.total > available:
        raise PreflightError(
            f"the rank needs about {_mib(estimate.total)} (weights {_mib(estimate.weights)}, activations of "
            f"{spec.packed_sequence_length} tokens {_mib(estimate.activations)}, other "
            f"{_mib(estimate.other)}) and {_mib(available)} are available; "
            "lower packed_sequence_length or free memory"
        )
    return estimate


def estimate_memory(spec: TrainerRuntimeSpec, description: ModelDescription) -> MemoryEstimate:
    """Counts what a layer keeps for its backward pass, and the weights from the files' headers."""
    item = _ITEM_BYTES[spec.dtype]
    options = description.options
    hidden, inner, layers = options["hidden_size"], options["ffn_hidden_size"], options["num_layers"]
    width = options["kv_channels"]
    queries, keys = options["num_attention_heads"] * width, options["num_query_groups"] * width
    # Two residual sums and two norms; rotated queries, keys, values and the output twice; gate, up and
    # product.
    per_token = 4 * hidden + 3 * queries + 2 * keys + 3 * inner
    if options["qk_layernorm"]:  # queries and keys as they were before; the keys' view keeps the fused output
        per_token += 2 * queries + 2 * keys
    activations = int(_SLACK * layers * per_token * spec.packed_sequence_length * item)
    elements = sum(_elements(file) for file in weight_files(spec.model_path))
    return MemoryEstimate(elements * item, activations, _WORKING_BYTES)


def _elements(file: Path) -> int:
    """Elements of all tensors of a safetensors file, from its header (8 bytes of length, then JSON)."""
    with open(file, "rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > file.stat().st_size:
            raise ModelLoadError(f"{file} is not a safetensors file: its header would have {length} bytes")
        header = json.loads(opened.read(length))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def _mib(byte_count: int) -> str:
    return f"{byte_count / 2**20:,.0f} MiB"
