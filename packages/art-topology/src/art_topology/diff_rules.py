"""For every field of a compiled topology: its name in words, what a change of it restarts, and why.

The reasons are those of the runtime: a trainer's ranks are warm as long as their runtime specification is
equal, in which the whole division of the model stands; a service is one vLLM deployment that takes its
arguments at its start; rollout workers have their places by the free CPU slots of all hosts; and a runtime is
attached to one set of hosts for its life.
"""

from typing import Literal

import msgspec

Effect = Literal["everything", "trainer", "service", "rollout_workers", "nothing", "gpu_networks", "nixl"]
"""What a change restarts. ``gpu_networks``: the GPU workloads that span hosts; ``nixl``: trainer and services
of a cluster of several hosts."""


class Rule(msgspec.Struct, frozen=True):
    """How a change of one field is told."""

    noun: str
    effect: Effect
    why: str


_DIVISION = "ranks stay warm only while the model is divided among them in the same way"
_PLACES = "a process cannot move to another device"
_ENGINE = "vLLM takes it at its start"
_NEXT = "it is looked up the next time"
_CHECKS = "only the compiler and the planner look at it"
_ATTACHED = "the runtime is attached to its hosts for its life"

_TRAINER_FIELDS = {
    "tp": "tensor parallelism (tp)",
    "cp": "context parallelism (cp)",
    "dp": "data parallelism (dp)",
    "ep": "expert parallelism (ep)",
    "etp": "expert tensor parallelism (etp)",
    "expert_dp": "data parallelism of the experts (expert_dp)",
    "pp": "pipeline parallelism (pp)",
    "vpp": "virtual pipeline stages (vpp)",
    "order": "order of the ranks",
    "vpp_microbatch_group_size": "microbatches of a virtual stage's turn (vpp_microbatch_group_size)",
    "sequence_parallel": "sequence parallelism (sequence_parallel)",
    "pipeline_layout": "pipeline layout (pipeline_layout)",
    "account_for_embedding_in_pipeline_split": "whether the embedding counts as a layer "
    "(account_for_embedding_in_pipeline_split)",
    "account_for_loss_in_pipeline_split": "whether the loss counts as a layer "
    "(account_for_loss_in_pipeline_split)",
    "num_layers_in_first_pipeline_stage": "layers of the first stage (num_layers_in_first_pipeline_stage)",
    "num_layers_in_last_pipeline_stage": "layers of the last stage (num_layers_in_last_pipeline_stage)",
}
_SERVICE_FIELDS = {
    "base_model": "base model (base_model)",
    "model_path": "folder of the model (model_path)",
    "max_model_len": "longest sequence (max_model_len)",
    "max_num_seqs": "requests at once (max_num_seqs)",
    "max_lora_rank": "largest rank of an adapter (max_lora_rank)",
    "max_loras": "adapters at once (max_loras)",
    "dtype": "type of weights (dtype)",
    "weights": "form of the stored weights (weights)",
    "seed": "seed (seed)",
    "gpu_memory_utilization": "share of GPU memory (gpu_memory_utilization)",
    "kv_cache_bytes": "bytes for the KV cache (kv_cache_bytes)",
    "tp": "tensor parallelism (tp)",
    "pp": "pipeline parallelism (pp)",
    "dp": "data parallelism (dp)",
    "expert_parallel": "expert parallelism (expert_parallel)",
}

RULES: dict[str, dict[str, Rule]] = {
    "RuntimeTopology": {
        "controller_host_id": Rule("host of the controller", "everything", "the controller runs the program"),
        "startup_timeout_s": Rule("limit for startup in seconds", "nothing", _NEXT),
        "rpc_timeout_s": Rule("limit for a control message in seconds", "nothing", _NEXT),
        "nccl_transport": Rule(
            "network of NCCL", "gpu_networks", "NCCL chooses its network when a process group is made"
        ),
        "nixl_transport": Rule(
            "metadata store of NIXL", "nixl", "NIXL agents register when their process starts"
        ),
        "worker_ports": Rule("ports of the workers", "everything", _ATTACHED),
        "hosts": Rule("order of the hosts", "everything", "workers are numbered by their hosts"),
        "services": Rule("order of the services", "nothing", "programs ask for services by name"),
    },
    "CompiledHost": {
        "node_rank": Rule("node rank", "everything", "workers are numbered by their hosts"),
        "address": Rule("address", "everything", _ATTACHED),
        "cpu_slots": Rule("CPU slots", "nothing", "only the free ones matter, and who takes them"),
        "free_cpu_slots": Rule(
            "CPU slots for rollout workers",
            "rollout_workers",
            "workers have their places by the free slots of all hosts",
        ),
        "gpus": Rule("GPUs", "nothing", "only those matter on which something is placed"),
        "reserved_ports": Rule("reserved ports", "nothing", _CHECKS),
        "gpu_model": Rule("model of the GPUs", "nothing", _CHECKS),
    },
    "CompiledTrainer": {
        "hosts": Rule("order of the hosts", "trainer", "ranks are numbered by their hosts"),
        "rendezvous": Rule("rendezvous", "trainer", "ranks meet there when they start"),
    },
    "TrainerHost": {
        "first_rank": Rule("first rank", "trainer", "a rank cannot take another number"),
        "devices": Rule("devices of the trainer", "trainer", _PLACES),
    },
    "MegatronTopologyConfig": {
        field: Rule(noun, "trainer", _DIVISION)
        for field, noun in _TRAINER_FIELDS.items()
        if field not in ("dp", "expert_dp", "order")
    },
    "RankLayout": {
        field: Rule(_TRAINER_FIELDS[field], "trainer", _DIVISION)
        for field in ("tp", "cp", "dp", "pp", "etp", "ep", "expert_dp", "order")
    },
    "CompiledService": {
        "leader": Rule("address of the API", "service", "it listens there from its start"),
        "rendezvous": Rule("rendezvous", "service", "its members meet there when they start"),
    },
    "ModelServiceSpec": {
        **{
            field: Rule(_SERVICE_FIELDS[field], "service", _ENGINE)
            for field in (
                "base_model",
                "model_path",
                "max_model_len",
                "max_num_seqs",
                "max_lora_rank",
                "max_loras",
                "dtype",
                "seed",
                "gpu_memory_utilization",
                "kv_cache_bytes",
            )
        },
        "weights": Rule(_SERVICE_FIELDS["weights"], "nothing", _CHECKS),
        "members": Rule("placement", "service", _PLACES),
        "leader": Rule("address of the API", "service", "it listens there from its start"),
        "rendezvous": Rule("rendezvous", "service", "its members meet there when they start"),
        "temporal_sharing": Rule("turns with the trainer (temporal_sharing)", "service", _ENGINE),
        "startup_timeout_s": Rule("limit for startup in seconds (startup_timeout_s)", "nothing", _NEXT),
    },
    "VllmParallelSpec": {
        field: Rule(_SERVICE_FIELDS[field], "service", _ENGINE)
        for field in ("tp", "pp", "dp", "expert_parallel")
    },
    "CompiledMember": {
        "member_index": Rule("number", "service", "members are numbered when they start"),
        "host_id": Rule("host", "service", "a process cannot move to another host"),
        "address": Rule("address", "service", "the members know each other by address"),
        "devices": Rule("devices", "service", _PLACES),
    },
}
"""By the name of the struct and of the field. Fields that are not here are told as they are called, and
restart what they belong to."""


def rule(struct: object, field: str, effect: Effect) -> Rule:
    """The rule of a field, or one with ``effect`` for a field that has none."""
    found = RULES.get(type(struct).__name__, {}).get(field)
    return found or Rule(f"{field}", effect, "it is not known to matter less")
