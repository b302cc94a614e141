"""How many rows of matrix products a step needs, whoever computes it."""

from collections.abc import Sequence

import msgspec
from benchmarks.first_loop.messages import Sample


class Counts(msgspec.Struct, frozen=True):
    """Rows of matrix products that a step needs at least.

    Args:
        prompt_rows: tokens of the distinct prompts.
        sampled_rows: sampled tokens but the last of each answer, which nothing follows: rows of the model.
        drawn_rows: sampled tokens: rows of the vocabulary.
        sampling_steps: the longest answer; the model is read so often.
        trained_rows: distinct prefixes of the answers that taught something, prompts included.
        predicting_rows: those from which a token was drawn.
    """

    prompt_rows: int
    sampled_rows: int
    drawn_rows: int
    sampling_steps: int
    trained_rows: int
    predicting_rows: int


def count(recorded: Sequence[Sequence[Sample]], rewards: Sequence[Sequence[float]]) -> Counts:
    """Counts one step from what was sampled, group by group, and the rewards for it."""
    answers = [sample for group in recorded for sample in group]
    trained: set[tuple[int, ...]] = set()
    predicting: set[tuple[int, ...]] = set()
    for group, worths in zip(recorded, rewards, strict=True):
        if max(worths) == min(worths):
            continue
        for sample in group:
            tokens = tuple(sample.prompt_ids + sample.completion_ids)
            trained.update(tokens[:end] for end in range(1, len(tokens)))
            predicting.update(tokens[:end] for end in range(len(sample.prompt_ids), len(tokens)))
    return Counts(
        prompt_rows=sum(map(len, {tuple(sample.prompt_ids) for sample in answers})),
        sampled_rows=sum(len(sample.completion_ids) - 1 for sample in answers),
        drawn_rows=sum(len(sample.completion_ids) for sample in answers),
        sampling_steps=max(len(sample.completion_ids) for sample in answers),
        trained_rows=len(trained),
        predicting_rows=len(predicting),
    )
