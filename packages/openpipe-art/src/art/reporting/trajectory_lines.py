"""From rollouts to lines of the run's folder: what each was given, and what it says token by token.

Advantages are computed as the trainer computes them (:func:`art_dataplane.group_advantages` with the rule of
the step), so a group whose rewards are all equal has none: nothing of it is trained on.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from art.checks.packages import install_command
from art.errors import ConfigError, RecordError
from art.records import token_records
from art.reporting.run_folder import ExchangeLine, TrajectoryLine
from art.reporting.token_texts import Decoder, token_texts
from art.train_config import TrainConfig
from art.trajectories import Rollout, Trajectory, TrajectoryHandle, rewards_of
from art.trajectory_groups import TrajectoryGroup
from art_dataplane import TokenRecord, TrajectoryRecord, VersionSpan, group_advantages

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class RecordReader(Protocol):
    """What reads records that stayed with their owners; :class:`art.distributed.RolloutExecutor` does."""

    async def records(
        self, handles: Sequence[TrajectoryHandle], *, deadline_s: float
    ) -> list[TrajectoryRecord]:
        """The records that the handles stand for, in order."""
        ...


class Executor(RecordReader, Protocol):
    """What the report needs of :class:`art.distributed.RolloutExecutor`."""

    @property
    def counts(self) -> tuple[int, int]:
        """Rollouts that were started, and how many of them are done."""
        ...


class TokenSource(NamedTuple):
    """Where tokens come from.

    Args:
        decoder: turns them into text; without it none are kept.
        reader: reads the records of handles; without it their tokens are not kept.
        deadline_s: for the reading, in seconds.
    """

    decoder: Decoder | None
    reader: RecordReader | None
    deadline_s: float


def read_tokenizer(folder: Path) -> "Tokenizer":
    """The tokenizer of a Hugging Face model.

    Raises:
        ConfigError: the package ``tokenizers`` is missing, or ``tokenizer.json`` cannot be read.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigError(
            f"the texts of tokens need the package tokenizers: {install_command('cpu')}"
        ) from error
    path = folder / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise ConfigError(f"{path} cannot be read as a tokenizer: {error}") from error


def sampled_rollouts(rollouts: Sequence[Rollout], count: int) -> tuple[int, ...]:
    """Which ``count`` rollouts of a group to show: the worst, the best and evenly between them by reward;
    those that failed, which have none, come before the worst."""

    def place_of(index: int) -> float:
        reward = rollouts[index].reward
        return -math.inf if reward is None else reward

    order = sorted(range(len(rollouts)), key=place_of)
    if len(order) <= count:
        return tuple(range(len(order)))
    if count <= 1:
        return tuple(order[len(order) - count :])
    places = {round(place * (len(order) - 1) / (count - 1)) for place in range(count)}
    return tuple(sorted(order[place] for place in places))


def advantages(groups: Sequence[TrajectoryGroup], config: TrainConfig) -> list[list[float | None]]:
    """The advantage of each rollout of each group; None where a group's rewards are all equal, and of
    rollouts that failed, which take no part in those of the others."""
    rewarded = [rewards_of(group) for group in groups]
    filled = [rewards for rewards in rewarded if rewards]
    offsets = np.cumsum([0, *map(len, filled)])
    flat = np.array([reward for rewards in filled for reward in rewards], np.float64)
    computed = group_advantages(flat, offsets, config.advantage_rule())
    by_group: Iterator[list[float | None]] = (
        [None] * int(end - start) if equal else computed.advantages[start:end].tolist()
        for start, end, equal in zip(offsets[:-1], offsets[1:], computed.is_zero_variance, strict=True)
    )
    result: list[list[float | None]] = []
    for group, rewards in zip(groups, rewarded, strict=True):
        worths = iter(next(by_group) if rewards else [])
        result.append([None if item.reward is None else next(worths) for item in group])
    return result


async def step_lines(
    groups: Sequence[TrajectoryGroup],
    step: int,
    config: TrainConfig,
    source: TokenSource,
    token_samples: int,
) -> list[TrajectoryLine]:
    """The rollouts of a step that is trained on with ``config``; with the tokens of some of each group.

    Raises:
        ArtError: a record cannot be read any more.
    """
    chosen = [sampled_rollouts(group.trajectories, token_samples) for group in groups]
    exchanges = await exchanges_of([group.trajectories for group in groups], chosen, source)
    return [
        trajectory_line(item, step=step, group=index, advantage=worth, exchanges=said)
        for index, (group, worths, saids) in enumerate(
            zip(groups, advantages(groups, config), exchanges, strict=True)
        )
        for item, worth, said in zip(group, worths, saids, strict=True)
    ]


async def evaluation_lines(items: Sequence[Rollout], step: int, source: TokenSource) -> list[TrajectoryLine]:
    """The rollouts of an evaluation after ``step``, each a group of its own, with its tokens.

    Raises:
        ArtError: a record cannot be read any more.
    """
    (exchanges,) = await exchanges_of([items], [range(len(items))], source)
    return [
        trajectory_line(item, step=step, group=index, exchanges=said)
        for index, (item, said) in enumerate(zip(items, exchanges, strict=True))
    ]


async def exchanges_of(
    groups: Sequence[Sequence[Rollout]], chosen: Sequence[Sequence[int]], source: TokenSource
) -> list[list[tuple[ExchangeLine, ...]]]:
    """The exchanges of each rollout of each group, token by token.

    Args:
        groups: the rollouts.
        chosen: of each group, the places of those whose tokens are kept; the others get none.
        source: of the tokens.

    Raises:
        ArtError: a record cannot be read any more.
    """
    result: list[list[tuple[ExchangeLine, ...]]] = [[()] * len(group) for group in groups]
    decoder, reader = source.decoder, source.reader
    if decoder is None:
        return result
    items = [(group[place], (index, place)) for index, group in enumerate(groups) for place in chosen[index]]
    handles = [item for item, _ in items if isinstance(item, TrajectoryHandle) and item.ref is not None]
    records: Mapping[str, TrajectoryRecord] = {}
    if handles and reader is not None:
        found = await reader.records(handles, deadline_s=source.deadline_s)
        records = {record.record_id: record for record in found}
    for item, (index, place) in items:
        result[index][place] = tuple(_exchange(one, decoder) for one in _token_records(item, records))
    return result


def sampled_by(items: Sequence[Rollout]) -> tuple[int, int] | None:
    """The lowest and the highest policy version that sampled the rollouts; None where nothing tells."""
    refs = [item.ref for item in items if isinstance(item, TrajectoryHandle) and item.ref is not None]
    refs = [ref for ref in refs if ref.ok]
    if not refs:
        return None
    return min(ref.min_version for ref in refs), max(ref.max_version for ref in refs)


def trajectory_line(
    item: Rollout,
    *,
    step: int,
    group: int,
    advantage: float | None = None,
    exchanges: tuple[ExchangeLine, ...] = (),
) -> TrajectoryLine:
    """A rollout as one line."""
    ref = item.ref if isinstance(item, TrajectoryHandle) else None
    return TrajectoryLine(
        step=step,
        group=group,
        reward=item.reward,
        failure=str(item.error) if isinstance(item, TrajectoryHandle) and item.error is not None else "",
        advantage=advantage,
        metrics={name: float(value) for name, value in item.metrics.items()},
        metadata=dict(item.metadata),
        record=ref.record_id if ref is not None else "",
        worker=item.worker if isinstance(item, TrajectoryHandle) else "",
        exchanges=exchanges,
    )


def completion_tokens(item: Rollout) -> float | None:
    """How many tokens the model said in a rollout; None where nothing tells."""
    if "completion_tokens" in item.metrics:
        return float(item.metrics["completion_tokens"])
    return None


def _token_records(item: Rollout, records: Mapping[str, TrajectoryRecord]) -> tuple[TokenRecord, ...]:
    if isinstance(item, Trajectory):
        try:
            return token_records(item)
        except RecordError:
            return ()  # made by hand: it is shown without tokens, and training on it is refused
    if item.ref is None or item.ref.record_id not in records:
        return ()
    return records[item.ref.record_id].exchanges


def _exchange(record: TokenRecord, decoder: Decoder) -> ExchangeLine:
    return ExchangeLine(
        prompt=decoder.decode(record.prompt_ids.tolist(), skip_special_tokens=False),
        tokens=token_texts(decoder, record.completion_ids.tolist()),
        logprobs=tuple(round(value, 6) for value in record.logprobs.tolist()),
        versions=_versions(record.completion_spans),
    )


def _versions(spans: Sequence[VersionSpan]) -> tuple[int, ...]:
    return tuple(span.version for span in spans for _ in range(span.end - span.start))
