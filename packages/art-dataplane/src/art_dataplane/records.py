"""What a trajectory is to a trainer: exchanges of token ids with the versions that computed them.

Invariants, checked by :func:`TokenRecord.validate`: one log-prob per completion token; spans are sorted,
adjacent and complete over the text they describe; token ids are never negative.
"""

import traceback
from collections.abc import Sequence

import msgspec
import numpy as np

from art_dataplane.arrays import encode
from art_dataplane.errors import RecordError

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
"""Rewards and temperatures are no larger, so that no arithmetic on them overflows."""

SMALLEST_FLOAT32 = float(np.finfo(np.float32).tiny)

LARGEST_VERSION = (1 << 31) - 1
"""Versions travel as int32."""

LOGPROB_TOLERANCE = 1e-3
"""How far above 0 rounding may put a log-prob."""

FAILURE_LENGTH = 200
"""So many characters of a failure travel in a reference; the whole of it stays with the record."""


class VersionSpan(msgspec.Struct, frozen=True):
    """Tokens ``[start, end)`` of one text were computed under policy ``version``."""

    start: int
    end: int
    version: int


class RouteBlock(msgspec.Struct, frozen=True):
    """MoE routes of ``prompt + completion``.

    A later exchange that goes on with an earlier one repeats its tokens. They were computed once, and their
    routes are those of the exchange in which they came up first; what the later one says of them is not used.

    Args:
        experts: uint8 or uint16 ``[tokens, layers, topk]``: the experts that each token went to.
    """

    experts: np.ndarray


class TokenRecord(msgspec.Struct, frozen=True, eq=False):
    """One exchange with a model.

    Args:
        prompt_ids: int32 ``[P]``: token ids of the prompt, at least one.
        completion_ids: int32 ``[C]``: token ids of the answer.
        logprobs: float32 ``[C]``; natural logarithm, of the distribution sampled from with its temperature
            applied. Without ``truncated_sampling`` that is the softmax of the logits over the temperature.
        prompt_spans: which version computed the keys and values of each prompt token.
        completion_spans: which version sampled each completion token.
        temperature: the sampling temperature; the trainer divides its logits by it.
        truncated_sampling: top-k, top-p, min-p or penalties were used, or it was greedy, so a ratio to
            ``logprobs`` is approximate. Batches count such records (``PackingCounts.truncated_records``).
        adapter_generation: name of the durable generation of the adapter, when it came from one.
        finish_reason: as OpenAI's.
        routes: for MoE, when captured.
        reference_logprobs: float32 ``[C]``, when they were computed: natural logarithm of the completion
            tokens under a reference policy, at the same temperature (see :class:`art_dataplane.KlRule`).
    """

    prompt_ids: np.ndarray
    completion_ids: np.ndarray
    logprobs: np.ndarray
    prompt_spans: tuple[VersionSpan, ...]
    completion_spans: tuple[VersionSpan, ...]
    temperature: float = 1.0
    truncated_sampling: bool = False
    adapter_generation: str | None = None
    finish_reason: str | None = None
    routes: RouteBlock | None = None
    reference_logprobs: np.ndarray | None = None

    def validate(self) -> None:
        """Checks everything that does not need the model.

        Raises:
            RecordError: the first invariant that does not hold, with its numbers.
        """
        _check_array("prompt_ids", self.prompt_ids, "int32")
        _check_array("completion_ids", self.completion_ids, "int32")
        _check_array("logprobs", self.logprobs, "float32")
        prompt_count, completion_count = len(self.prompt_ids), len(self.completion_ids)
        if prompt_count == 0:
            raise RecordError(
                "the prompt is empty; the first completion token needs a token that predicts it"
            )
        if len(self.logprobs) != completion_count:
            raise RecordError(
                f"{len(self.logprobs)} log-probs for {completion_count} completion tokens; there must be "
                "one each"
            )
        for name, ids in (("prompt_ids", self.prompt_ids), ("completion_ids", self.completion_ids)):
            if len(ids) and ids.min() < 0:
                raise RecordError(
                    f"{name}[{int(ids.argmin())}] is {int(ids.min())}; token ids are never negative"
                )
        _check_logprobs("logprobs", self.logprobs)
        if self.reference_logprobs is not None:
            _check_array("reference_logprobs", self.reference_logprobs, "float32")
            if len(self.reference_logprobs) != completion_count:
                raise RecordError(
                    f"{len(self.reference_logprobs)} reference log-probs for {completion_count} completion "
                    "tokens; there must be one each, or none at all"
                )
            _check_logprobs("reference_logprobs", self.reference_logprobs)
        _check_spans("prompt_spans", self.prompt_spans, prompt_count)
        _check_spans("completion_spans", self.completion_spans, completion_count)
        if self.temperature != 0 and not SMALLEST_FLOAT32 <= self.temperature <= LARGEST_FLOAT32:
            raise RecordError(
                f"temperature {self.temperature} is neither 0 nor a positive number that float32 can hold"
            )
        if self.routes is not None:
            _check_routes(self.routes.experts, prompt_count + completion_count)


class RolloutError(msgspec.Struct, frozen=True):
    """Why a rollout has no result.

    Args:
        kind: name of the exception's type.
        message: its text.
        traceback: its formatted traceback, as the process that ran it saw it.
    """

    kind: str
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> "RolloutError":
        """What is kept of ``error``, which ended a rollout, with its traceback."""
        return cls(type(error).__name__, str(error), "".join(traceback.format_exception(error)))

    def __str__(self) -> str:
        """``KIND: MESSAGE``, of at most 200 characters."""
        text = f"{self.kind}: {self.message}" if self.message else self.kind
        return text if len(text) <= FAILURE_LENGTH else text[: FAILURE_LENGTH - 3] + "..."


class RolloutTiming(msgspec.Struct, frozen=True):
    """When a rollout ran.

    Args:
        duration_s: seconds it took, measured by the worker's monotonic clock.
        started_unix_s: its start in seconds since 1970 (Unix time), for display only.
    """

    duration_s: float
    started_unix_s: float = 0.0


class TrajectoryRecord(msgspec.Struct, frozen=True, eq=False):
    """One finished rollout.

    Args:
        record_id: unique among all records of a run.
        group_id: of the group whose rewards are compared.
        exchanges: with the model, in their order. Each next prompt extends the last prompt + completion, or
            starts a branch.
        reward: finite; None, and never a number, when ``error`` is set.
        metrics: what the user measured, by name.
        metadata: what the user noted, by name.
        timing: when it ran.
        error: with it the rollout failed: it has no reward and is never trained on.
    """

    record_id: str
    group_id: str
    exchanges: tuple[TokenRecord, ...]
    reward: float | None
    metrics: dict[str, float] = {}
    metadata: dict[str, str | int | float | bool | None] = {}
    timing: RolloutTiming = RolloutTiming(0.0)
    error: RolloutError | None = None

    def encoded(self) -> bytes:
        """The record as MessagePack.

        Raises:
            RecordError: something in it cannot be encoded: an id that is no text, metadata that is no plain
                value.
        """
        try:
            return encode(self)
        except (TypeError, ValueError, OverflowError, NotImplementedError, RecursionError) as error:
            raise RecordError(f"record {self.record_id!r} cannot be encoded: {error}") from error

    def validate(self) -> None:
        """Checks the record and each of its exchanges.

        Raises:
            RecordError: the first invariant that does not hold, with the record's id and the exchange's
                index.
        """
        if not self.record_id or not self.group_id:
            raise RecordError(f"record {self.record_id!r} of group {self.group_id!r}: both ids must be given")
        for name, value in self.metrics.items():
            if not _is_number(value):
                raise RecordError(
                    f"record {self.record_id}: metric {name!r} is {value!r}, not a number; write float(...)"
                )
        for key, noted in self.metadata.items():
            if not isinstance(key, str) or not (
                noted is None or isinstance(noted, str | int | float | np.generic)
            ):
                raise RecordError(
                    f"record {self.record_id}: metadata {key!r} is {noted!r}; keys are text, values text, "
                    "numbers, booleans or None"
                )
        _check_reward(self.record_id, self.reward, failed=self.error is not None)
        for index, exchange in enumerate(self.exchanges):
            try:
                exchange.validate()
            except RecordError as error:
                raise RecordError(f"record {self.record_id}, exchange {index}: {error}") from error


class TrajectoryRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the queue holds and the controller selects by: no tokens.

    Args:
        record_id: of the record.
        group_id: of its group.
        owner: the process that holds the record.
        byte_count: bytes of its MessagePack.
        token_count: its logical tokens (the last prompt + completion of each branch).
        reward: of the record; None when it failed, so that nobody takes it for a reward.
        min_version: oldest policy version of a completion token; 0 without any.
        max_version: newest policy version of a completion token; 0 without any.
        ok: False when the rollout failed.
        failure: why it failed, shortened: ``KIND: MESSAGE``. The record has the whole error.
    """

    record_id: str
    group_id: str
    owner: str
    byte_count: int
    token_count: int
    reward: float | None
    min_version: int
    max_version: int
    ok: bool
    failure: str = ""

    def validate(self) -> None:
        """Checks what a queue relies on.

        Raises:
            RecordError: an id or the owner is missing, there are no bytes, or a failed rollout has a reward,
                or another one has none.
        """
        if not (self.record_id and self.group_id and self.owner):
            raise RecordError(
                f"reference to record {self.record_id!r} of group {self.group_id!r} with {self.owner!r}: "
                "both ids and the owner must be given"
            )
        if self.byte_count <= 0 or self.token_count < 0:
            raise RecordError(
                f"reference to record {self.record_id}: {self.byte_count} bytes and {self.token_count} "
                "tokens; a record has at least 1 byte"
            )
        _check_reward(self.record_id, self.reward, failed=not self.ok)


class LostGroup(msgspec.Struct, frozen=True):
    """A group that can no longer be trained on as it was: records of it are gone.

    Args:
        group_id: of the group.
        record_ids: which of its records are gone.
        owners: who held these.
        reason: what became of them.
    """

    group_id: str
    record_ids: tuple[str, ...]
    owners: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        """What it lost, in words."""
        return (
            f"group {self.group_id} lost {len(self.record_ids)} records of {', '.join(self.owners)} "
            f"({self.reason})"
        )

    def joined(self, later: "LostGroup") -> "LostGroup":
        """What is known of the same group from both, each record and owner once.

        Args:
            later: what became known since.
        """
        known = later.reason in self.reason
        return LostGroup(
            self.group_id,
            tuple(dict.fromkeys((*self.record_ids, *later.record_ids))),
            tuple(dict.fromkeys((*self.owners, *later.owners))),
            self.reason if known else f"{self.reason}; {later.reason}",
        )


def branches(exchanges: Sequence[TokenRecord]) -> tuple[tuple[int, ...], ...]:
    """Splits ``exchanges`` into chains of indices, ascending; each exchange is in one chain.

    Inside a chain each prompt extends the prompt + completion before it. An exchange that extends no chain's
    last one starts a chain: it is a branch of the conversation, or another conversation.
    """
    chains: list[list[int]] = []
    for index, exchange in enumerate(exchanges):
        for chain in reversed(chains):
            if extends(exchange, exchanges[chain[-1]]):
                chain.append(index)
                break
        else:
            chains.append([index])
    return tuple(map(tuple, chains))


def extends(later: TokenRecord, earlier: TokenRecord) -> bool:
    """Whether the later prompt begins with the earlier prompt + completion."""
    prompt_count = len(earlier.prompt_ids)
    count = prompt_count + len(earlier.completion_ids)
    return (
        len(later.prompt_ids) >= count
        and np.array_equal(later.prompt_ids[prompt_count:count], earlier.completion_ids)
        and np.array_equal(later.prompt_ids[:prompt_count], earlier.prompt_ids)
    )


def logical_token_count(exchanges: Sequence[TokenRecord]) -> int:
    """How many tokens ``exchanges`` have: those of the last prompt + completion of each branch."""
    lasts = (exchanges[chain[-1]] for chain in branches(exchanges))
    return sum(len(last.prompt_ids) + len(last.completion_ids) for last in lasts)


def trajectory_ref(record: TrajectoryRecord, owner: str, *, byte_count: int | None = None) -> TrajectoryRef:
    """The reference that travels in place of ``record``.

    The versions are 0 for a record without completion tokens.

    Args:
        record: a valid record.
        owner: the process that keeps it.
        byte_count: bytes of its MessagePack when they are known; else the record is encoded to count them.
    """
    versions = [span.version for exchange in record.exchanges for span in exchange.completion_spans]
    return TrajectoryRef(
        record_id=record.record_id,
        group_id=record.group_id,
        owner=owner,
        byte_count=len(encode(record)) if byte_count is None else byte_count,
        token_count=logical_token_count(record.exchanges),
        reward=record.reward if record.error is None else None,
        min_version=min(versions, default=0),
        max_version=max(versions, default=0),
        ok=record.error is None,
        failure="" if record.error is None else str(record.error),
    )


def _check_reward(record_id: str, reward: float | None, *, failed: bool) -> None:
    if failed and reward is not None:
        raise RecordError(
            f"record {record_id} failed and has a reward of {reward}; a failed rollout has none: set it to "
            "None"
        )
    if failed:
        return
    if reward is not None and not _is_number(reward):
        raise RecordError(f"record {record_id}: reward {reward!r} is not a number; write float(...)")
    if reward is None or not -LARGEST_FLOAT32 <= reward <= LARGEST_FLOAT32:
        raise RecordError(
            f"record {record_id}: reward {reward} is not finite, or too large for float32; a rollout without "
            "one sets error"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _check_array(name: str, array: np.ndarray, dtype: str) -> None:
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.name != dtype:
        found = f"{array.dtype.name} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise RecordError(f"{name} must be a NumPy array {dtype} of one dimension, not {found}")


def _check_logprobs(name: str, logprobs: np.ndarray) -> None:
    wrong = ~(np.isfinite(logprobs) & (logprobs <= LOGPROB_TOLERANCE))
    if wrong.any():
        index = int(wrong.argmax())
        raise RecordError(
            f"{name}[{index}] is {logprobs[index]}; a sampled token has a finite log-prob of at most 0"
        )


def _check_spans(name: str, spans: tuple[VersionSpan, ...], count: int) -> None:
    end = 0
    for index, span in enumerate(spans):
        if span.start != end or span.end <= span.start or not 0 <= span.version <= LARGEST_VERSION:
            raise RecordError(
                f"{name}[{index}] is [{span.start}, {span.end}) of version {span.version}; it must begin at "
                f"{end}, hold at least one token and have a version of at least 0"
            )
        end = span.end
    if end != count:
        raise RecordError(f"{name} cover {end} of {count} tokens; spans must be complete")


def _check_routes(experts: np.ndarray, count: int) -> None:
    if experts.ndim != 3 or experts.dtype.name not in ("uint8", "uint16") or len(experts) != count:
        raise RecordError(
            f"routes must be uint8 or uint16 [{count}, layers, topk], not {experts.dtype.name} "
            f"{experts.shape}"
        )
