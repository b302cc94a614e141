"""The constants of the cost model: global and few. None belongs to a model, a layout or a measurement.

Where they come from, as the end of each description says:

- *calibrated*: on the rows marked "calibrate" of the package's ``accuracy`` folder (NeMo and Megatron Bridge
  on H100, B200, B300, GB200 and GB300), by the mean absolute logarithmic error on a coarse grid, within what
  the sources below allow.
- *NCCL*, *DeepEP*, *Megatron*: read in the source or documentation of that program.
- *profiled*: from published profiles of such runs (Qwen3 30B on H200, Qwen3 235B on B200).
- *measured*: by the project on its own runs.
- *assumed*: nobody has published it; the value is an order of magnitude.
"""

import msgspec


class ByArchitecture(msgspec.Struct, frozen=True, kw_only=True):
    """A value for each ``GpuModel.architecture``."""

    ampere: float
    ada: float
    hopper: float
    blackwell: float
    other: float

    def of(self, architecture: str) -> float:
        """The value for an architecture."""
        return float(getattr(self, architecture))


def everywhere(value: float, **exceptions: float) -> ByArchitecture:
    """The same value for every architecture but those that are named."""
    same = ByArchitecture(ampere=value, ada=value, hopper=value, blackwell=value, other=value)
    return msgspec.structs.replace(same, **exceptions)


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Fractions of peaks that software reaches, and overheads. The defaults are used everywhere.

    Args:
        matmul_fraction: Of the dense peak, for large matrix products. Calibrated; one value, since only
            Hopper has enough rows (cuBLAS alone reaches 0.7 to 0.8).
        grouped_fraction: Of what one product reaches, for the products of many experts in one kernel.
            Calibrated.
        attention_forward_fraction: Of the dense peak, for the core of dense attention. Calibrated on Hopper,
            where profiles agree (0.53); profiled on Blackwell.
        attention_backward_fraction: Likewise for its backward pass.
        sparse_forward_fraction: Of the dense peak, for attention to selected keys, which are gathered.
            Measured on Blackwell, together with the next two, as the useful MFU of GLM-5.2 with CP8/EP8/DP2
            on B300 (TileLang's kernels use older tensor instructions there); assumed elsewhere.
        sparse_backward_fraction: Likewise for its backward pass, which adds up gradients by atomic
            operations.
        indexer_fraction: Of the dense peak, for the scores of the indexer with the selection of its top keys.
        linear_attention_fraction: Of the dense peak, for chunked linear attention. Assumed.
        memory_fraction: Of the memory bandwidth, for kernels that it bounds. Calibrated.
        kernel_s: Time of a kernel beyond its arithmetic: start, first loads, last tile, in seconds.
            Calibrated.
        tile_rows: Rows of a tile of a grouped product; half a tile per expert is lost on average.
        product_depth: Length of the sums that a tile of a product takes to start and to end: short sums
            (narrow experts) are slower by it. Calibrated.
        launches_per_layer: Kernels that the host starts for the forward pass of a layer, twice as many for
            the backward pass; a layer takes at least their launches. Megatron.
        expert_launches: Further ones of a layer with experts: router, dispatch, products. Megatron.
        launch_s: Time the host needs for a launch, autograd and Python included, in seconds. Calibrated.
        router_graph: Share of a layer's launches that is left where the router is a CUDA graph. Assumed.
        attention_graph: Share that is left where attention is one too. Assumed.
        counts_s: What a pass through experts waits where the host needs the counts of their tokens before it
            goes on (dispatch by all-to-all), in seconds. Calibrated.
        expert_overlap: Share of a row's work behind which another row's dispatch and combine can run, where
            the program overlaps them. Assumed.
        bias_passes: Reads and writes of routed rows that biases and a clamped activation of experts add
            (GPT-OSS), which megatron-core does not fuse: 62 and 36 bytes a number, both passes. Megatron.
        kernel_passes: How often a layer reads or writes its activations outside matrix products, in units of
            the hidden size per token: norms, residuals, rotations, casts. Calibrated.
        nvlink_fraction: Of an NVLink, for collectives. Calibrated.
        network_fraction: Of a network link, for collectives. NCCL and DeepEP report 0.85 to 0.95.
        host_fraction: Of a host or PCIe link, for copies and collectives. Assumed.
        collective_s: Start of one collective, in seconds. NCCL (baseLat, ring, Simple).
        small_message_latency: Latency of the LL protocol over that of the Simple protocol: 0.6 of 3.4 us on
            NVLink, 2.7 of 14 us on a network. NCCL (src/graph/tuning.cc).
        small_message_rate: Its rate over the other's; half of what LL sends are flags. NCCL.
        expert_variation: Standard deviation of the tokens of an expert over their mean, where no loss
            balances the router: rows of reinforcement learning; pretraining is taken as balanced. Assumed.
        row_variation: Standard deviation of the work of a row over its mean, for rows packed from documents
            of different lengths. Assumed.
        dp_overlap: How much of the synchronization of gradients can run behind the backward pass of a row.
            Calibrated.
        copies_overlap: How much of offload's copies can run behind the work of a row. Assumed.
        optimizer_bytes: Bytes that the optimizer reads and writes for each parameter it holds: gradient,
            master copy, two moments, and the weight. Megatron.
        decode_attention_fraction: Of the dense peak, for the core of attention in a decode step. Assumed.
        decode_collective_s: Start of a collective within a CUDA graph, in seconds. Assumed.
        decode_step_s: Time of an engine step outside kernels: scheduling, sampling, output, in seconds.
            Assumed.
        prefill_fraction: Of the time that arithmetic says, what prefill reaches between decode steps.
            Assumed.
        decode_launches_per_layer: Kernels of a layer in a decode step, started by a CUDA graph. Assumed.
        graph_launch_s: Time of such a start, in seconds. Assumed.
        loop_overhead_s: Time of a training step outside forward and backward in the loop, in seconds.
            Measured (GLM-5.2 on B300).
    """

    matmul_fraction: ByArchitecture = everywhere(0.68)
    grouped_fraction: float = 0.90
    attention_forward_fraction: ByArchitecture = everywhere(0.57, blackwell=0.55)
    attention_backward_fraction: ByArchitecture = everywhere(0.47, blackwell=0.45)
    sparse_forward_fraction: ByArchitecture = everywhere(0.092, ampere=0.2, ada=0.2, hopper=0.40)
    sparse_backward_fraction: ByArchitecture = everywhere(0.049, ampere=0.1, ada=0.1, hopper=0.20)
    indexer_fraction: ByArchitecture = everywhere(0.092, ampere=0.2, ada=0.2, hopper=0.30)
    linear_attention_fraction: float = 0.15
    memory_fraction: float = 0.85
    kernel_s: float = 5e-6
    tile_rows: int = 128
    product_depth: float = 100.0
    launches_per_layer: int = 40
    expert_launches: int = 120
    launch_s: float = 18e-6
    router_graph: float = 0.75
    attention_graph: float = 0.5
    counts_s: float = 0.4e-3
    expert_overlap: float = 0.8
    bias_passes: float = 16.0
    kernel_passes: float = 10.0
    nvlink_fraction: float = 0.85
    network_fraction: float = 0.85
    host_fraction: float = 0.80
    collective_s: float = 8.4e-6
    small_message_latency: float = 0.19
    small_message_rate: float = 0.5
    expert_variation: float = 0.3
    row_variation: float = 0.10
    dp_overlap: float = 1.0
    copies_overlap: float = 0.8
    optimizer_bytes: float = 34.0
    decode_attention_fraction: float = 0.25
    decode_collective_s: float = 4e-6
    decode_step_s: float = 3e-3
    prefill_fraction: float = 0.6
    decode_launches_per_layer: int = 12
    graph_launch_s: float = 2e-6
    loop_overhead_s: float = 1.494
