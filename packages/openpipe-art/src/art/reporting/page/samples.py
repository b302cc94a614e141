"""Chooses the trajectories that the page shows, and writes them small.

What always holds: every trajectory is counted and enters its step's summary, whether it is shown or not.
Which are shown does not depend on reward: those whose tokens were kept come first, then the order of the
file, taken from each group in turn.
"""

import collections
import itertools
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from art.reporting.page.load import Exchange, Rollout, TrajectoryFile, read_rollouts

PAGE_BUDGET = 3_500_000
"""Bytes of JSON that all shown trajectories may take, about."""

LEAST_PER_FILE = 3_500
"""Bytes that each shown file gets; without room for all files, evenly spaced ones are shown."""


MOST_SHARES = 5
"""Different rewards that a run may have for their shares to be shown."""

_LEAST_TEXT = 400  # characters
_LEAST_TOKENS = 16
_TOKEN_BYTES = 24  # of JSON: text, log-prob and separators


class Summary(msgspec.Struct, frozen=True):
    """Of all trajectories of one file: the middle half of the rewards, the versions that sampled, and how
    often there was each reward (empty where there are more than :data:`MOST_SHARES`)."""

    count: int
    reward_low: float | None
    reward_high: float | None
    version_min: int | None
    version_max: int | None
    rewards: dict[float, int]


class Samples(msgspec.Struct, frozen=True):
    """What the page shows of the trajectories.

    Args:
        texts: every distinct prompt and text of metadata; the sets refer to them by index.
        sets: one per shown file, as the page's script reads them.
        summaries: by (name, number) of every file.
        total: trajectories in all files.
        shown: in the page.
        tokens_kept: trajectories in all files whose tokens were kept.
        tokens_shown: with tokens in the page.
    """

    texts: list[str]
    sets: list[dict[str, Any]]
    summaries: dict[tuple[str, int], Summary]
    total: int
    shown: int
    tokens_kept: int
    tokens_shown: int

    def shares(self, name: str, numbers: Sequence[int]) -> dict[str, Any] | None:
        """Where a run knows few different rewards: these, and of each file how often there was which, as
        shares of 1; None where there are more than :data:`MOST_SHARES`."""
        found = [self.summaries.get((name, number)) for number in numbers]
        there = [item for item in found if item is not None and item.count]
        values = sorted({reward for item in there for reward in item.rewards})
        if len(values) > MOST_SHARES or any(not item.rewards for item in there) or len(values) < 2:
            return None
        shares = [
            [
                None if item is None or not item.count else item.rewards.get(value, 0) / item.count
                for item in found
            ]
            for value in values
        ]
        return {"rewards": values, "shares": shares}


def choose_samples(files: Sequence[TrajectoryFile], budget: int = PAGE_BUDGET) -> Samples:
    """Reads every file once and keeps what fits into ``budget`` bytes.

    Raises:
        PageError: a finished line cannot be read.
    """
    shown_files = _evenly(len(files), max(1, budget // LEAST_PER_FILE))
    writer = _Writer()
    sets, summaries = [], {}
    total = shown = tokens_kept = tokens_shown = 0
    for index, file in enumerate(files):
        rollouts = read_rollouts(file)
        summaries[file.name, file.number] = _summary(rollouts)
        total += len(rollouts)
        tokens_kept += sum(bool(item.exchanges) for item in rollouts)
        if index in shown_files and rollouts:
            rows = writer.rows(rollouts, budget // len(shown_files))
            shown += len(rows)
            tokens_shown += sum("x" in row for row in rows)
            sets.append(
                {"name": file.name, "number": file.number, "total": len(rollouts), "rows": rows}
                | {"training": file.of_training, "file": file.path.name}
            )
    return Samples(writer.texts, sets, summaries, total, shown, tokens_kept, tokens_shown)


def _evenly(count: int, most: int) -> set[int]:
    """At most ``most`` of ``count`` indices, the first and the last among them."""
    if count <= most:
        return set(range(count))
    return {round(index * (count - 1) / max(1, most - 1)) for index in range(most)}


def _summary(rollouts: Sequence[Rollout]) -> Summary:
    rewards = [item.reward for item in rollouts if item.reward is not None]
    versions = [version for item in rollouts for part in item.exchanges for version in part.versions]
    low: float | None = None
    high: float | None = None
    if len(rewards) > 1:
        low, _, high = statistics.quantiles(rewards, n=4, method="inclusive")
    counted = collections.Counter(rewards)
    few = len(counted) <= MOST_SHARES and len(rewards) == len(rollouts)
    return Summary(
        len(rollouts),
        low,
        high,
        min(versions, default=None),
        max(versions, default=None),
        dict(counted) if few else {},
    )


class _Writer:
    """Rollouts as short JSON values; holds the texts that they share."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._index: dict[str, int] = {}

    def rows(self, rollouts: Sequence[Rollout], budget: int) -> list[dict[str, Any]]:
        """As many rollouts as fit, in the order of the file; at least one, cut where it alone is too much."""
        rows: dict[int, dict[str, Any]] = {}
        for position in _in_turn(rollouts):
            known = len(self.texts)
            row = self._row(rollouts[position], budget if not rows else sys.maxsize)
            cost = self._cost(row, known)
            if rows and cost > budget:
                self._forget(known)
                break
            budget -= cost
            rows[position] = row
        return [rows[position] for position in sorted(rows)]

    def _row(self, item: Rollout, room: int) -> dict[str, Any]:
        row: dict[str, Any] = {"g": item.group, "r": item.reward, "a": item.advantage}
        if item.metrics:
            row["m"] = item.metrics
        if item.metadata:
            row["d"] = {
                name: self._text(value, room) if isinstance(value, str) else value
                for name, value in item.metadata.items()
            }
        if item.exchanges:
            row["x"] = self._exchanges(item.exchanges, room)
        return row

    def _exchanges(self, exchanges: Sequence[Exchange], room: int) -> list[dict[str, Any]]:
        """A prompt that goes on from the exchange before it is written as what it adds."""
        written: list[dict[str, Any]] = []
        before = ""
        for exchange in exchanges:
            known = len(self.texts)
            goes_on = bool(before) and exchange.prompt.startswith(before)
            most = max(_LEAST_TOKENS, room // _TOKEN_BYTES)
            part: dict[str, Any] = {
                "p": self._text(exchange.prompt[len(before) if goes_on else 0 :], room),
                "t": exchange.tokens[:most],
                "l": [_short(value) for value in exchange.logprobs[:most]],
                "v": [
                    [version, len(list(same))]
                    for version, same in itertools.groupby(exchange.versions[:most])
                ],
                "cut": len(exchange.tokens) - min(most, len(exchange.tokens)),
            }
            written.append(part)
            room -= self._cost(part, known)
            if room <= 0:
                break
            before = exchange.prompt + "".join(exchange.tokens)
        return written

    def _text(self, text: str, room: int) -> list[int]:
        """`[index]`, or `[index, characters left out]`; in a list, since numbers stand for themselves."""
        most = max(_LEAST_TEXT, room // 4)
        index = self._index.setdefault(text[:most], len(self.texts))
        if index == len(self.texts):
            self.texts.append(text[:most])
        return [index] if len(text) <= most else [index, len(text) - most]

    def _cost(self, value: Any, known: int) -> int:
        return len(msgspec.json.encode([value, self.texts[known:]]))

    def _forget(self, known: int) -> None:
        for text in self.texts[known:]:
            del self._index[text]
        del self.texts[known:]


def _short(value: float | None) -> float | None:
    """Five significant digits: more than a colour shows."""
    return None if value is None else float(f"{value:.5g}")


def _in_turn(rollouts: Sequence[Rollout]) -> Iterator[int]:
    """Positions: with tokens first, one of each group in turn."""
    for with_tokens in (True, False):
        groups: dict[int, list[int]] = {}
        for position, item in enumerate(rollouts):
            if bool(item.exchanges) == with_tokens:
                groups.setdefault(item.group, []).append(position)
        for turn in itertools.zip_longest(*groups.values()):
            yield from (position for position in turn if position is not None)
