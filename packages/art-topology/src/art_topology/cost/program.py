"""What of the trainer's software decides how fast a layer is: facts of a program, none of them a measurement.

The defaults are ART's trainer. Other values describe other programs, so that published runs of them can be
compared with the planner.
"""

from typing import Literal

import msgspec

Recomputed = Literal["core_attention", "norms", "activations", "mla_up"]
"""What selective recomputation computes again: the core of attention, the norms, the activations of
feed-forward layers, the up-projections of latent attention."""


class TrainerProgram(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the trainer's software.

    Args:
        sequence_parallel: Tensor-parallel ranks divide the tokens between the matrices they divide; else
            each computes norms and residuals of all.
        dispatcher: "fused" (HybridEP, DeepEP): a token is sent once to each rank or host that needs it, and
            kernels permute on the way. "all_to_all" (NCCL): every copy of a token is sent, rows are sorted
            once more by expert, and the host waits for the counts before it can start the experts.
        expert_overlap: Dispatch and combine of one row run behind the work of another.
        cuda_graphs: What of a layer the host starts as a graph: nothing, the router with what prepares the
            dispatch, or attention as well.
        recomputed: What selective recomputation computes again.
        gradient_bytes: Bytes of a gradient when it is summed over ranks.
    """

    sequence_parallel: bool = True
    dispatcher: Literal["fused", "all_to_all"] = "fused"
    expert_overlap: bool = False
    cuda_graphs: Literal["none", "router", "attention"] = "none"
    recomputed: tuple[Recomputed, ...] = ("core_attention",)
    gradient_bytes: int = 4
