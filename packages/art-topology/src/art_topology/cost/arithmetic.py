"""Arithmetic against a roofline: matrix products, kernels bound by memory, the core of attention.

A product takes the longer of its arithmetic at a fraction of the peak and its bytes at a fraction of the
memory's bandwidth, and a constant on top. The constant is what makes small products slow: 2,048 cubed takes
25 us of arithmetic on an H100, so 6 us more are a fifth of it, and 512 cubed is nothing but the constant.
"""

import msgspec

from art_topology.cost.calibration import Calibration
from art_topology.hardware import ComputeDtype, GpuModel


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as the cost model sees it: what it reaches, not what it could.

    Args:
        peak_flops: Dense peak in the dtype of the workload, in FLOP/s.
        matmul_flops: What large products reach, in FLOP/s.
        grouped_flops: What large products of many experts in one kernel reach.
        memory_bytes_per_s: What kernels bound by memory reach.
        kernel_s: Time of a kernel beyond its arithmetic.
        tile_rows: Rows of a tile.
        depth: Length of the sums that a tile of a product takes for its start and its end.
        dtype_bytes: Bytes of a weight or activation.
        architecture: For tables by architecture.
    """

    peak_flops: float
    matmul_flops: float
    grouped_flops: float
    memory_bytes_per_s: float
    kernel_s: float
    tile_rows: int
    depth: float
    dtype_bytes: int
    architecture: str

    def product_s(self, rows: float, inputs: int, outputs: int, *, weights: bool = False) -> float:
        """``rows`` x ``inputs`` times ``inputs`` x ``outputs``, in seconds; or the gradient of the weights,
        whose sums run over the rows."""
        flops = 2.0 * rows * inputs * outputs * (1.0 + self.depth / (rows if weights else inputs))
        moved = (rows * (inputs + outputs) + inputs * outputs) * self.dtype_bytes
        return max(flops / self.matmul_flops, moved / self.memory_bytes_per_s) + self.kernel_s

    def grouped_s(
        self, rows: float, inputs: int, outputs: int, groups: int, *, weights: bool = False
    ) -> float:
        """``groups`` products of ``rows`` rows each in one kernel, in seconds. Each loses half a tile."""
        flops = (
            2.0
            * (rows + self.tile_rows / 2)
            * inputs
            * outputs
            * groups
            * (1.0 + self.depth / (rows if weights else inputs))
        )
        moved = (rows * (inputs + outputs) + inputs * outputs) * self.dtype_bytes * groups
        return max(flops / self.grouped_flops, moved / self.memory_bytes_per_s) + self.kernel_s

    def moved_s(self, moved_bytes: float) -> float:
        """Reading and writing so many bytes, in seconds."""
        return moved_bytes / self.memory_bytes_per_s


_COMPUTE: dict[str, ComputeDtype] = {"bfloat16": "bfloat16", "float16": "float16", "float32": "tf32"}


def processor(gpu: GpuModel, dtype: str, dtype_bytes: int, calibration: Calibration) -> Processor:
    """What a GPU reaches in a dtype of weights and activations; float32 is multiplied as tf32 where there is
    it.

    Raises:
        SpecError: the GPU has no arithmetic in this format.
    """
    compute = _COMPUTE[dtype]
    if compute == "tf32" and "tf32" not in gpu.peak_flops:
        compute = "float32"
    peak = gpu.flops(compute)
    reached = peak * calibration.matmul_fraction.of(gpu.architecture) * gpu.sustained
    return Processor(
        peak_flops=peak,
        matmul_flops=reached,
        grouped_flops=reached * calibration.grouped_fraction,
        memory_bytes_per_s=gpu.memory_bandwidth_bytes_per_s * calibration.memory_fraction,
        kernel_s=calibration.kernel_s,
        tile_rows=calibration.tile_rows,
        depth=calibration.product_depth,
        dtype_bytes=dtype_bytes,
        architecture=gpu.architecture,
    )
