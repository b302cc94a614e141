"""The same sequences for all sides, made from a seed."""

from typing import NamedTuple

import numpy as np

from art_dataplane import TokenRecord, TrajectoryRecord, VersionSpan

VOCABULARY = 49_152


class Rollout(NamedTuple):
    """One trajectory of one exchange: int32 ids of its prompt and completion, float32 log-probs."""

    group: int
    prompt: np.ndarray
    completion: np.ndarray
    logprobs: np.ndarray
    reward: float

    @property
    def tokens(self) -> np.ndarray:
        """int32: the tokens to compute: the last predicts nothing."""
        return np.concatenate((self.prompt, self.completion[:-1]))


def lengths(count: int, row: int, seed: int) -> np.ndarray:
    """int64 ``[count]``: log-normal with a median of 400 tokens, from 16 to a whole row."""
    random = np.random.default_rng(seed)
    return np.clip(random.lognormal(np.log(400), 0.8, count).astype(np.int64), 16, row)


def different_prompts(sizes: np.ndarray, seed: int) -> list[Rollout]:
    """Rollouts that share nothing, of ``sizes`` tokens to compute, the first third of each its prompt."""
    random = np.random.default_rng(seed)
    found = []
    for number, size in enumerate(sizes.tolist()):
        count = max(size // 3, 1)
        prompt = random.integers(0, VOCABULARY, count, dtype=np.int32)
        found.append(_rollout(random, number // 16, prompt, size - count + 1))
    return found


def common_prompts(groups: int, samples: int, seed: int) -> list[Rollout]:
    """Groups of samples of one prompt of 300 to 900 tokens, which all begin with the same 40."""
    random = np.random.default_rng(seed)
    system = random.integers(0, VOCABULARY, 40, dtype=np.int32)
    found = []
    for group in range(groups):
        own = random.integers(0, VOCABULARY, random.integers(260, 861), dtype=np.int32)
        prompt = np.concatenate((system, own))
        found += [_rollout(random, group, prompt, int(random.integers(100, 961))) for _ in range(samples)]
    return found


def _rollout(random: np.random.Generator, group: int, prompt: np.ndarray, count: int) -> Rollout:
    completion = random.integers(0, VOCABULARY, count, dtype=np.int32)
    return Rollout(group, prompt, completion, -random.random(count, dtype=np.float32), float(random.random()))


def shuffled(rollouts: list[Rollout], seed: int) -> list[Rollout]:
    """The same in a random order."""
    return [rollouts[index] for index in np.random.default_rng(seed).permutation(len(rollouts))]


def records(rollouts: list[Rollout]) -> list[list[TrajectoryRecord]]:
    """As ART's packing is given them: group by group, each record with arrays of its own."""
    groups: dict[int, list[TrajectoryRecord]] = {}
    for number, each in enumerate(rollouts):
        exchange = TokenRecord(
            prompt_ids=each.prompt.copy(),
            completion_ids=each.completion,
            logprobs=each.logprobs,
            prompt_spans=(VersionSpan(0, len(each.prompt), 3),),
            completion_spans=(VersionSpan(0, len(each.completion), 3),),
        )
        groups.setdefault(each.group, []).append(
            TrajectoryRecord(f"r{number:06d}", f"g{each.group:05d}", (exchange,), each.reward)
        )
    return list(groups.values())


def distinct_prefixes(sequences: list[np.ndarray]) -> int:
    """Tokens when every prefix is computed once: the nodes of a trie, counted with a dictionary."""
    children: dict[tuple[int, int], int] = {}
    for sequence in sequences:
        node = 0
        for token in sequence.tolist():
            node = children.setdefault((node, token), len(children) + 1)
    return len(children)
