"""What no configuration says and the estimates take for granted; every number has a name, a reason and a
source.

Change one with ``msgspec.structs.replace(MemoryAssumptions(), ...)`` and pass it on.
"""

import msgspec

MIB = 1 << 20


class MemoryAssumptions(msgspec.Struct, frozen=True, kw_only=True):
    """Assumptions of the memory estimates.

    Args:
        gradient_bytes: Bytes of a gradient of a weight: float32, into which Megatron accumulates
            (``accumulate_allreduce_grads_in_fp32``, which it sets for bfloat16).
        adapter_bytes: Bytes of an adapter's weight: float32, so that it is its own master copy.
        vocab_multiple: The vocabulary is padded to a multiple of this times ``tp`` (Megatron-LM's
            ``make_vocab_size_divisible_by`` is 128; ART's trainer does not pad).
        score_bytes: Bytes that the core of attention keeps for each query, key and head. 0: flash attention
            keeps none. Korthikanti et al. (2205.05198) count 5: softmax, dropout mask, dropped scores.
        mask_bytes: Bytes of dropout masks for each feature of the residual stream and layer. 0: reinforcement
            learning trains without dropout. Korthikanti et al. count 2.
        sequence_parallel: Tensor-parallel ranks divide the tokens between the matrices they divide, as ART's
            trainer does; else each keeps all.
        expert_imbalance: Tokens of the fullest rank's experts over the mean of all ranks. An estimate.
        logit_chunk_tokens: Tokens whose logits exist at a time; log-probabilities are made chunk by chunk.
        logit_copies_bytes: Bytes beside each logit itself: in float32, and its gradient. Megatron-LM's own
            loss works in place in one float32 copy, which takes 4.
        workspace_bytes: Bytes of the workspaces of cuBLAS (PyTorch's default on Hopper) and of Transformer
            Engine, 32 MiB each, which PyTorch's allocator holds.
        grouped_workspace_bytes: Bytes of Transformer Engine's further ones for products of experts, one for
            each of its 4 streams.
        cuda_context_bytes: Bytes of the CUDA context with the kernels of PyTorch and its libraries, per
            process. An estimate without a published source.
        nccl_bytes: Bytes of the buffers of a communicator that has two ranks or more. 688 MiB were measured
            for groups of three and more on four A100 with NVLink, 544 for two (NVIDIA/nccl issue 964).
        nccl_all_to_all_bytes: Bytes of further buffers of the expert-parallel communicator, whose all-to-all
            connects every pair: 3.3 GB on eight H100 (NVIDIA/nccl issue 1685).
        nccl_most_bytes: Bytes that all communicators of a process come to at most; they share channels and
            buffers of one peer (NCCL 2.19 and later, ``ncclCommSplit``).
        allocator_share: Memory that PyTorch's allocator holds beyond the tensors in it, as a share of what
            comes and goes (activations and buffers). An estimate.
        service_batch_tokens: Tokens of vLLM's largest batch (``max_num_batched_tokens``; 8192 on GPUs of 70
            GB and more).
        service_activation_copies: Tensors of the widest kind in a layer that vLLM's profile run holds at
            once.
        cuda_graph_bytes: Bytes of the CUDA graphs of a vLLM worker; 0.36 to 0.9 GiB were logged (vllm issues
            52872, gpustack runner 251).
        block_tokens: Tokens of a block of vLLM's KV cache.
    """

    gradient_bytes: int = 4
    adapter_bytes: int = 4
    vocab_multiple: int = 1
    score_bytes: float = 0.0
    mask_bytes: float = 0.0
    sequence_parallel: bool = True
    expert_imbalance: float = 1.2
    logit_chunk_tokens: int = 1024
    logit_copies_bytes: int = 8
    workspace_bytes: int = 64 * MIB
    grouped_workspace_bytes: int = 128 * MIB
    cuda_context_bytes: int = 500 * MIB
    nccl_bytes: int = 688 * MIB
    nccl_all_to_all_bytes: int = 3_280_000_000
    nccl_most_bytes: int = 6 << 30
    allocator_share: float = 0.05
    service_batch_tokens: int = 8192
    service_activation_copies: float = 3.0
    cuda_graph_bytes: int = 614 * MIB
    block_tokens: int = 16
