"""Model services: each is one native vLLM deployment, on one host or several, under a user's name."""

from typing import Annotated, Literal

import msgspec

from art_topology.cluster import CpuPlacement, EndpointSpec, GpuPlacement
from art_topology.spec import Count, Name, Seconds, Spec, Ways

ServedWeights = Literal["auto", "unquantized", "fp8", "mxfp4", "nvfp4", "int8", "int4"]
"""How a service says that its weights are stored; ``auto``: as the model's ``config.json`` says."""


class VllmParallelSpec(Spec, frozen=True, kw_only=True):
    """How vLLM divides the model: ``tp * pp * dp`` workers.

    Args:
        tp: Workers among which the matrices of a layer are divided.
        pp: Pipeline stages.
        dp: Copies of the model (of its attention, with ``expert_parallel``) that share the requests.
        expert_parallel: Whether the experts of a layer are divided among the ``tp * dp`` workers of a
            pipeline stage.
    """

    tp: Ways = 1
    pp: Ways = 1
    dp: Ways = 1
    expert_parallel: bool = False

    @property
    def world_size(self) -> int:
        """How many workers it needs."""
        return self.tp * self.pp * self.dp


class ModelServiceMemberSpec(Spec, frozen=True, kw_only=True):
    """One host's share of a service: one worker per GPU or per CPU slot of ``placement``."""

    placement: GpuPlacement | CpuPlacement

    @property
    def host_id(self) -> str:
        """The host it runs on."""
        return self.placement.host_id


class ModelServiceSpec(Spec, frozen=True, kw_only=True):
    """One vLLM deployment.

    Args:
        name: How programs ask for it, unique among the services; the runtime gives no name a meaning.
        base_model: Hugging Face name or local folder of the model, and the name it is served under.
        model_path: Folder to load instead of ``base_model``, the same path on every member's host.
        members: The first is the leader, whose host serves the API. Each on a host of its own.
        parallel: How vLLM divides the model among the members' workers.
        max_model_len: Longest prompt and completion together, in tokens; by default what the model allows.
        max_num_seqs: How many requests run at once.
        max_lora_rank: Largest rank of an adapter; one of vLLM's (1, 8, 16, 32, 64, 128, 256, 320, 512).
        max_loras: How many adapters can be active at once.
        dtype: Type of weights and activations; "auto" takes the model's.
        weights: How the weights in the folder that is loaded are stored: "unquantized", or in which form;
            "auto" is what ``quantization_config`` in the model's config.json says. Memory is planned with it;
            vLLM reads it from the folder itself.
        seed: Seed of the engine's sampler.
        gpu_memory_utilization: Share of each GPU's memory that vLLM may use. GPU members only.
        kv_cache_bytes: Memory for the KV cache of each worker, in bytes; by default vLLM decides.
        leader: Where the API listens; by default the address of the leader's host and a port it chooses.
        rendezvous: Where the leader listens for the other members; by default likewise.
        temporal_sharing: Whether its GPUs may be the trainer's as well: service and trainer take turns.
        startup_timeout_s: Limit from launch to ready, in seconds. Loading a model takes longer than starting
            a worker, so it is not the cluster's.
    """

    name: Name
    base_model: Annotated[str, msgspec.Meta(min_length=1)]
    members: Annotated[tuple[ModelServiceMemberSpec, ...], msgspec.Meta(min_length=1)]
    model_path: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    parallel: VllmParallelSpec = VllmParallelSpec()
    max_model_len: Count | None = None
    max_num_seqs: Count = 64
    max_lora_rank: Count = 16
    max_loras: Count = 1
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    weights: ServedWeights = "auto"
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    gpu_memory_utilization: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    kv_cache_bytes: Count | None = None
    leader: EndpointSpec | None = None
    rendezvous: EndpointSpec | None = None
    temporal_sharing: bool = False
    startup_timeout_s: Seconds = 600.0
