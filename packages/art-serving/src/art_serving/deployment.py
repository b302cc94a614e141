"""What crosses the border between a model service and the hosts of its members: structs and one protocol."""

import enum
import math
import re
from typing import Literal, Protocol

import msgspec

from art_dataplane.snapshot import SnapshotManifest
from art_serving.errors import OptionsError


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How vLLM runs on a host, beyond what the topology says.

    Args:
        threads: compute threads of each worker on CPU.
        max_num_batched_tokens: tokens that one engine step computes at most; None leaves it to vLLM.
        block_size: tokens per block of the KV cache; equal prompts share whole blocks.
        prefix_caching: whether equal beginnings are computed once (per activation of an adapter).
        stall_timeout_s: when requests run but no engine step ended for so many seconds, the engine counts as
            stalled.
        tool_parser: vLLM's name of the parser that finds tool calls in what the model says, such as
            ``hermes`` or ``pythonic``; requests with tools are refused without one.

    Raises:
        OptionsError: a value is of a wrong type or out of its range; it is a ``ValueError``, too.
    """

    threads: int = 1
    max_num_batched_tokens: int | None = None
    block_size: int = 32
    prefix_caching: bool = True
    stall_timeout_s: float = 30.0
    tool_parser: str | None = None

    def __post_init__(self) -> None:
        _check_whole("threads", self.threads, 2, 4096)
        if self.max_num_batched_tokens is not None:
            _check_whole("max_num_batched_tokens", self.max_num_batched_tokens, 2048, 2**24)
        _check_whole("block_size", self.block_size, 32, 2**16)
        if not isinstance(self.prefix_caching, bool):
            raise _wrong("prefix_caching", self.prefix_caching, "True or False", True)
        timeout = self.stall_timeout_s
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
            raise _wrong("stall_timeout_s", timeout, "a number of seconds above 0", 30.0)
        parser = self.tool_parser
        if parser is not None and (not isinstance(parser, str) or not re.fullmatch(r"[\w.-]+", parser)):
            raise _wrong("tool_parser", parser, "None or the name of a parser of vLLM's", "hermes")


def _check_whole(name: str, value: object, example: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise _wrong(name, value, f"a whole number from 1 to {most}", example)


def _wrong(name: str, value: object, wanted: str, example: object) -> OptionsError:
    return OptionsError(
        f"EngineOptions.{name} is {value!r}; it must be {wanted}, for example {name}={example!r}"
    )


class Secret(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A token that must not be seen in logs: it has no readable representation.

    Args:
        value: the token itself.
    """

    value: str

    def __repr__(self) -> str:
        """Hides the value."""
        return "Secret(...)"


class MemberLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one host needs to start its member.

    Args:
        service: name of the model service.
        member: index of the member in the service.
        incarnation: counts starts of this member from 0; a restart has a higher one.
        model_path: the base model in Hugging Face form, on that host.
        base_model_name: model name under which the base model is served.
        adapter_name: model name under which the policy (the active adapter) is served.
        dtype: of weights and activations; "auto" takes the model's.
        max_model_len: tokens of prompt and completion together; None takes what the model allows.
        max_num_seqs: sequences that one engine step computes at most.
        max_lora_rank: largest rank of an adapter.
        kv_cache_bytes: memory for keys and values of each worker, in bytes.
        seed: of the engine's sampler.
        host: address to listen on.
        port: to listen on; 0 is chosen by the process that listens.
        tensor_parallel_size: workers among which the matrices of a layer are divided.
        pipeline_parallel_size: pipeline stages.
        options: how vLLM runs beyond that.
        log_folder: where the member's log is written, on that host.
        admin_token: asked from requests that change state. Travels by environment, never in arguments or
            logs.
        api_key: asked from inference requests; None asks for none.
    """

    service: str
    member: int
    incarnation: int
    model_path: str
    base_model_name: str
    adapter_name: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    max_model_len: int | None
    max_num_seqs: int
    max_lora_rank: int
    kv_cache_bytes: int
    seed: int
    log_folder: str
    admin_token: Secret
    api_key: Secret | None
    host: str = "127.0.0.1"
    port: int = 0
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    options: EngineOptions = EngineOptions()

    @property
    def title(self) -> str:
        """For messages: ``member 0 of service 'policy'``."""
        return f"member {self.member} of service {self.service!r}"


class Health(enum.Enum):
    """What a member or a service is. ``QUARANTINED``: it runs, but which adapter is active is in doubt."""

    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"
    QUARANTINED = "quarantined"
    FAILED = "failed"
    STOPPED = "stopped"


class EngineStats(msgspec.Struct, frozen=True):
    """How an engine is doing; counters count from its start.

    Args:
        unfinished: requests that were accepted and have not ended.
        running: requests that take part in the engine's steps.
        waiting: requests that wait for a place.
        steps: engine steps that ended.
        kv_usage: share of the KV cache in use, 0 to 1.
        prompt_tokens: prompt tokens of the requests that were begun.
        generation_tokens: tokens that were sampled.
        prefix_queries: prompt tokens that were looked up in the prefix cache.
        prefix_hits: those of them that were found there and not computed again.
        preemptions: how often a running request was put back for lack of memory.
        step_age_s: seconds since the last engine step ended, None before the first.
        stalled_s: seconds that unfinished requests have waited without an engine step; 0 when nothing waits.
        beat_age_s: seconds since the API server last wrote.
    """

    unfinished: int
    running: int
    waiting: int
    steps: int
    kv_usage: float
    prompt_tokens: int
    generation_tokens: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    step_age_s: float | None
    stalled_s: float
    beat_age_s: float


class MemberState(msgspec.Struct, frozen=True):
    """One member now.

    Args:
        member: its index in the service.
        incarnation: counts its starts from 0.
        health: what it is.
        detail: why, when it is not ready.
        pid: of its API server; None before that is ready.
        engine_pids: of its engine core and workers.
        base_url: ``http://HOST:PORT`` of its HTTP server; None before that is ready.
        version: active policy version; None before the first activation, and when it does not answer.
        digest: of the active snapshot's bytes (BLAKE2b-256, hex); None likewise.
        stats: how its engine is doing; None before it is ready and after it stopped.
    """

    member: int
    incarnation: int
    health: Health
    detail: str = ""
    pid: int | None = None
    engine_pids: tuple[int, ...] = ()
    base_url: str | None = None
    version: int | None = None
    digest: str | None = None
    stats: EngineStats | None = None


class HostLauncher(Protocol):
    """Starts and ends members on one host.

    ``art`` implements it with an actor; :class:`art_serving.LocalLauncher` starts subprocesses of this
    process.
    """

    async def start_member(self, launch: MemberLaunch, deadline_s: float) -> MemberState:
        """Starts the member that ``launch`` describes and waits until it serves.

        Raises:
            PreflightError: the host cannot run it; nothing was started.
            MemberError: it did not get ready within ``deadline_s`` seconds, or died; nothing of it is left.
        """
        ...

    async def member_state(self, service: str, member: int, deadline_s: float) -> MemberState:
        """What the member is now; a dead member is a state, not an error.

        Args:
            service: name of the service.
            member: index of the member.
            deadline_s: seconds that its server may take to answer.

        Raises:
            MemberError: there never was one of that name here.
        """
        ...

    async def stop_member(self, service: str, member: int, deadline_s: float) -> None:
        """Ends the member; SIGKILL when it has not ended in time. Does nothing when there is none.

        Args:
            service: name of the service.
            member: index of the member.
            deadline_s: seconds that all of it may take to end.

        Raises:
            MemberError: something of it is still there after all that.
        """
        ...

    async def receive_snapshot(self, manifest: SnapshotManifest, deadline_s: float) -> SnapshotManifest:
        """Brings the bytes of a snapshot onto this host.

        Args:
            manifest: describes the snapshot and where its bytes are.
            deadline_s: seconds that it may take.

        Returns:
            The same manifest with the bytes' location on this host.

        Raises:
            ActivationError: they could not be brought here in time.
        """
        ...


class MemberActivation(msgspec.Struct, frozen=True):
    """What one member reports after it activated a snapshot.

    Args:
        member: index of the member; the server itself does not know it and reports 0.
        version: policy version that is active now.
        digest: of the bytes that its workers loaded (BLAKE2b-256, hex), computed by them.
        wait_ms: milliseconds from the request until the engine stood between two steps.
        pause_ms: milliseconds that the engine stood still.
        read_ms: milliseconds of reading and checking the snapshot, while the engine was stepping.
    """

    version: int
    digest: str
    wait_ms: float
    pause_ms: float
    read_ms: float
    member: int = 0


class ActivationReport(msgspec.Struct, frozen=True):
    """A version that every member of the service has activated.

    Args:
        version: the policy version.
        digest: of the bytes that every member loaded (BLAKE2b-256, hex).
        members: what each reported, by index.
        duration_ms: milliseconds of the whole call.
    """

    version: int
    digest: str
    members: tuple[MemberActivation, ...]
    duration_ms: float

    @property
    def pause_ms(self) -> float:
        """The longest time that any member's engine stood still, in milliseconds."""
        return max(member.pause_ms for member in self.members)


class ServiceState(msgspec.Struct, frozen=True):
    """The service as one domain.

    Args:
        name: of the service.
        health: that of its worst member, or ``QUARANTINED`` when it is in doubt what they serve.
        detail: why, when it is not ready.
        version: the committed policy version; None before the first activation.
        members: each member's state.
        base_url: for an OpenAI client, ``http://HOST:PORT/v1``; None when no member runs.
    """

    name: str
    health: Health
    detail: str
    version: int | None
    members: tuple[MemberState, ...]
    base_url: str | None = None
