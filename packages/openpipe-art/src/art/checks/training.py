"""What training and serving one model needs of this machine, by the model's own files.

The figures were measured with `art demo` on 2 cores (SmolLM2-135M-Instruct, 134.5 M parameters, float32):
proportional set size of every process, sampled each 0.3 s over a run. The sum peaked at 5.5 GiB, 5.7 GiB in a
control group of its own, which counts the page cache too.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from art.checks import machine
from art.checks.hosts import (
    cpu_check,
    disk_check,
    folder_check,
    host_checks,
    ports_check,
    process_limits_check,
    shared_memory_check,
)
from art.checks.model_facts import ModelFacts, folder_problem, read_model_facts
from art.checks.packages import installed_check
from art.checks.results import Check, State, failed, passed, warned
from art.checks.sizes import disk_size, memory_size
from art.checks.weights import model_checks
from art.errors import ConfigError

SERVER_PROCESSES = int(1.5 * 2**30)
"""vLLM's API server (0.6 GiB) and engine core (0.9 GiB) without weights and KV cache."""
TRAINER_PROCESS = int(0.75 * 2**30)
"""A rank with torch and megatron-core imported."""
OTHER_PROCESSES = int(0.25 * 2**30)
"""Packing worker and model service. The program and its rollout workers (0.4 GiB in the demo) run already."""
KV_CACHE_BYTES = 2**30
"""Of a model service whose specification does not say."""
_TRAINED_BYTES = 16
"""Of one trained number: itself, its gradient and AdamW's two moments, in float32."""
_GENERATION_BYTES = 12
"""Of one trained number in a generation on disk: itself and two moments, in float32."""
_SEGMENT_BYTES = 16 << 20
"""Packed batches and records in shared memory; those of the demo are below 0.1 MB."""


class TrainingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be trained and served here.

    Args:
        base_model: the model's folder.
        run_dir: the run's folder.
        resume: it may hold a run, which is continued.
        packed_sequence_length: physical tokens of a row, and the longest prompt and answer that is served.
        snapshot_capacity: adapters in memory that publication and durability may lag behind.
        lora_rank: of the adapter.
        dtype: of the server's weights.
        kv_cache_bytes: of the server, in bytes; None for 1 GiB.
        endpoints: address, port and purpose of what listens; port 0 is free to choose.
    """

    base_model: Path
    run_dir: Path
    resume: bool = False
    packed_sequence_length: int
    snapshot_capacity: int = 2
    lora_rank: int = 8
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    kv_cache_bytes: int | None = None
    endpoints: tuple[tuple[str, int, str], ...] = ()


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that a plan takes.

    Args:
        server, trainer, others: memory of the processes at least, whatever the batches are.
        activations: of a full row, on top.
        shared_memory: of ``/dev/shm``; counted in memory as well.
        generation: of one durable step on disk.
    """

    server: int
    trainer: int
    others: int
    activations: int
    shared_memory: int
    generation: int

    @property
    def memory(self) -> int:
        """Bytes without which it cannot start."""
        return self.server + self.trainer + self.others + self.shared_memory


def needs(plan: TrainingPlan, facts: ModelFacts) -> Needs:
    """What the plan takes with a model of these sizes."""
    adapter = facts.adapter_parameters(plan.lora_rank)
    served_bytes = _served_bytes(plan, facts)
    return Needs(
        server=facts.parameters * served_bytes + (plan.kv_cache_bytes or KV_CACHE_BYTES) + SERVER_PROCESSES,
        trainer=facts.parameters * 4 + adapter * _TRAINED_BYTES + TRAINER_PROCESS,
        others=OTHER_PROCESSES,
        activations=facts.activation_bytes_per_token() * plan.packed_sequence_length,
        shared_memory=(plan.snapshot_capacity + 1) * adapter * 4 + _SEGMENT_BYTES,
        generation=adapter * _GENERATION_BYTES,
    )


def training_checks(plan: TrainingPlan) -> list[Check]:
    """Everything that can be known of the plan on this machine before a process starts."""
    checks = [
        *folder_checks(plan),
        installed_check("cpu"),
        *host_checks(),
        cpu_check(),
        process_limits_check(),
        *ports_check(plan.endpoints),
    ]
    if folder_problem(plan.base_model) is not None:
        return checks
    model = model_checks(plan.base_model)
    try:
        facts = read_model_facts(plan.base_model)
    except ConfigError as error:
        if any(_is_of_another_family(check) for check in model):
            return [*model, *checks]  # another family's config.json has other fields
        same = ("weights", "model family") if "config.json" in str(error) else ("weights",)
        others = [check for check in model if check.name not in same]
        return [failed("base_model", str(error), remedy="fetch the model again"), *checks, *others]
    checks += model
    needed = needs(plan, facts)
    return [
        *checks,
        memory_check(plan, facts, needed),
        shared_memory_check(needed.shared_memory, f"{plan.snapshot_capacity + 1} adapters and batches"),
        *_length_checks(plan, facts),
        generation_check(plan.run_dir, needed.generation),
    ]


def _is_of_another_family(check: Check) -> bool:
    return "this version trains" in check.found and not check.found.startswith("architectures is []")


def memory_check(plan: TrainingPlan, facts: ModelFacts, needed: Needs) -> Check:
    """Memory for server and trainer; the activations of a full row decide between a warning and none."""
    remedies = [] if plan.dtype == "bfloat16" else ["dtype='bfloat16' for the server"]
    remedy = ", or ".join(["end other programs", *remedies, "a smaller model"])
    text = (
        f"about {memory_size(needed.memory)} for {facts.parameters / 1e6:.1f} M parameters (server "
        f"{memory_size(needed.server)}, trainer {memory_size(needed.trainer)}, other processes "
        f"{memory_size(needed.others)}, shared memory {memory_size(needed.shared_memory)})"
    )
    found = f"{available_text(machine.memory())}"
    return rated_memory(
        needed.memory,
        found,
        text,
        remedy,
        comfortable=needed.memory + needed.activations,
        why=f"about {memory_size(needed.memory + needed.activations)} when a batch fills a row of "
        f"{plan.packed_sequence_length} tokens",
    )


def rated_memory(needed: int, found: str, text: str, remedy: str, *, comfortable: int, why: str) -> Check:
    """A check of memory: it fails below ``needed`` bytes, and warns below ``comfortable``."""
    available = machine.memory().available
    if available < needed:
        return failed("memory", found, text, remedy)
    if available < comfortable:
        return warned("memory", found, why, remedy)
    return passed("memory", found, text)


def available_text(memory: machine.Memory) -> str:
    """``21.3 GiB available of 23.5 GiB``, and whether something else than the machine bounds it."""
    bound = "" if memory.bound_by == "machine" else ", by the limit of this container or control group"
    return f"{memory_size(memory.available)} available of {memory_size(memory.limit)}{bound}"


def generation_check(folder: Path, generation_bytes: int) -> Check:
    """Room for generations: two must fit (one is written aside); a warning where there is none for twenty."""
    remedy = "choose a folder on another file system"
    there = machine.space(folder)
    two, twenty = 2 * generation_bytes, 20 * generation_bytes
    check = disk_check("disk of the run", folder, two, remedy)
    if check.state is State.OK and there.free < twenty:
        return warned(
            "disk of the run",
            check.found,
            f"{disk_size(generation_bytes)} for the generation of each step",
            remedy,
        )
    return msgspec.structs.replace(
        check, needed=f"{disk_size(generation_bytes)} for the generation of each step"
    )


def folder_checks(plan: TrainingPlan) -> list[Check]:
    """The model's folder and the run's, which every host sees."""
    problem = folder_problem(plan.base_model)
    model = failed("base_model", problem) if problem else passed("base_model", str(plan.base_model))
    return [model, *_run_folder_checks(plan)]


def _run_folder_checks(plan: TrainingPlan) -> list[Check]:
    remedy = "choose another folder for the run"
    kept = sorted(path.name for path in (plan.run_dir / "generations").glob("step-*"))
    if kept and not plan.resume:
        return [
            failed(
                "run folder",
                f"{plan.run_dir} holds a run already ({len(kept)} generations, the newest {kept[-1]})",
                remedy="choose another folder, or pass resume=True to MegatronBackend to continue it",
            )
        ]
    return [folder_check("run folder", plan.run_dir, remedy)]


def _length_checks(plan: TrainingPlan, facts: ModelFacts) -> Iterable[Check]:
    length, positions = plan.packed_sequence_length, facts.max_positions
    if positions is not None and length > positions and not facts.positions_scaled:
        yield failed(
            "packed_sequence_length",
            f"{length} tokens",
            f"at most {positions}, the model's positions",
            f"call art.init_megatron_runtime_config(packed_sequence_length={positions}) or less",
        )
        return
    token_bytes = facts.kv_bytes_per_token * _served_bytes(plan, facts) // 4
    room = (plan.kv_cache_bytes or KV_CACHE_BYTES) // token_bytes
    if length > room:
        yield failed(
            "KV cache",
            f"{memory_size(plan.kv_cache_bytes or KV_CACHE_BYTES)} hold {room} tokens of this model, whose "
            f"config.json says {facts.layers} layers with {facts.kv_heads} key-value heads of "
            f"{facts.head_dim} numbers: {memory_size(token_bytes)} for each token",
            f"{length} for one prompt and its answer (packed_sequence_length)",
            f"call art.init_megatron_runtime_config(packed_sequence_length={room}) or less, or give the "
            "model service more kv_cache_bytes",
        )
        return
    yield passed("packed_sequence_length", f"{length} tokens", f"at most {positions or room}")


def _served_bytes(plan: TrainingPlan, facts: ModelFacts) -> int:
    """Bytes of one number in the server; "auto" takes the file's width."""
    if plan.dtype == "auto":
        return 4 if facts.file_bytes > 3 * facts.parameters else 2
    return 4 if plan.dtype == "float32" else 2
