"""The constants of the cost model: global, few, each with its reason. None belongs to a model or a layout."""

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


def everywhere(value: float) -> ByArchitecture:
    """The same value for every architecture."""
    return ByArchitecture(ampere=value, ada=value, hopper=value, blackwell=value, other=value)


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Fractions of peaks that software reaches, and overheads.

    Args:
        matmul_fraction: Of the dense peak, for large matrix products.
        grouped_fraction: Of what one product reaches, for the products of many experts in one kernel.
        attention_forward_fraction: Of the dense peak, for the core of dense attention.
        attention_backward_fraction: Likewise for its backward pass.
        sparse_forward_fraction: Of the dense peak, for attention to selected keys, which are gathered.
        sparse_backward_fraction: Likewise for its backward pass, which adds up gradients by atomic
            operations.
        indexer_fraction: Of the dense peak, for the scores of the indexer with the selection of its top keys.
        linear_attention_fraction: Of the dense peak, for chunked linear attention.
        memory_fraction: Of the memory bandwidth, for kernels that it bounds.
        kernel_s: Time of a kernel beyond its arithmetic: start, first loads, last tile, in seconds.
        tile_rows: Rows of a tile of a grouped product; half a tile per expert is lost on average.
        launches_per_layer: Kernels that the host starts for the forward pass of a layer; a layer takes at
            least their launches.
        launch_s: Time the host needs for a launch, in seconds.
        kernel_passes: How often a layer reads or writes its activations outside matrix products, in units of
            the hidden size per token: norms, residuals, rotations, casts.
        nvlink_fraction: Of a scale-up link, for collectives.
        network_fraction: Of a network link, for collectives.
        host_fraction: Of a host link, for copies.
        collective_s: Start of one collective, in seconds.
        small_message_latency: Latency of NCCL's LL protocol over that of its Simple protocol: 0.6 of 3.4 us
            on NVLink, 2.7 of 14 us on a network (src/graph/tuning.cc).
        small_message_rate: Its rate over the other's; half of what LL sends are flags.
        expert_variation: Standard deviation of the tokens of an expert over their mean, where a router is not
            balanced by a loss: reinforcement learning freezes it, pretraining balances it.
        row_variation: Standard deviation of the work of a row over its mean, for rows packed from documents.
        dp_overlap: How much of the synchronization of gradients can run behind the backward pass.
        copies_overlap: How much of offload's copies can run behind the work of a row.
        optimizer_bytes: Bytes that the optimizer reads and writes for each parameter it holds.
        decode_attention_fraction: Of the dense peak, for the core of attention in a decode step.
        decode_collective_s: Start of a collective within a CUDA graph, in seconds.
        decode_step_s: Time of an engine step outside kernels: scheduling, sampling, output, in seconds.
        prefill_fraction: Of the time that arithmetic says, what prefill reaches between decode steps.
        decode_launches_per_layer: Kernels of a layer in a decode step, started by a CUDA graph.
        graph_launch_s: Time of such a start, in seconds.
        loop_overhead_s: Time of a training step outside forward and backward in the loop, in seconds.
    """

    matmul_fraction: ByArchitecture = everywhere(0.68)
    grouped_fraction: float = 0.85
    attention_forward_fraction: ByArchitecture = everywhere(0.57)
    attention_backward_fraction: ByArchitecture = everywhere(0.47)
    sparse_forward_fraction: ByArchitecture = ByArchitecture(
        ampere=0.2, ada=0.2, hopper=0.40, blackwell=0.15, other=0.15
    )
    sparse_backward_fraction: ByArchitecture = ByArchitecture(
        ampere=0.1, ada=0.1, hopper=0.20, blackwell=0.08, other=0.08
    )
    indexer_fraction: ByArchitecture = ByArchitecture(
        ampere=0.2, ada=0.2, hopper=0.30, blackwell=0.15, other=0.15
    )
    linear_attention_fraction: float = 0.15
    memory_fraction: float = 0.85
    kernel_s: float = 5e-6
    tile_rows: int = 128
    launches_per_layer: int = 40
    launch_s: float = 5e-6
    kernel_passes: float = 14.0
    nvlink_fraction: float = 0.85
    network_fraction: float = 0.85
    host_fraction: float = 0.80
    collective_s: float = 8.4e-6
    small_message_latency: float = 0.19
    small_message_rate: float = 0.5
    expert_variation: float = 0.3
    row_variation: float = 0.10
    dp_overlap: float = 0.8
    copies_overlap: float = 0.8
    optimizer_bytes: float = 34.0
    decode_attention_fraction: float = 0.25
    decode_collective_s: float = 4e-6
    decode_step_s: float = 3e-3
    prefill_fraction: float = 0.6
    decode_launches_per_layer: int = 12
    graph_launch_s: float = 2e-6
    loop_overhead_s: float = 1.494
