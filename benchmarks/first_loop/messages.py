"""What crosses the pipes between the benchmark and the process of the plain loop: one JSON line each way."""

import msgspec


class PlainSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the plain loop is made.

    Args:
        model_path: Hugging Face folder of the base model.
        adapter_path: PEFT folder with the first weights of the adapter.
        learning_rate, clip_low, clip_high, max_grad_norm: as in ``art.TrainConfig``.
        threads: that torch computes with.
    """

    model_path: str
    adapter_path: str
    learning_rate: float
    clip_low: float
    clip_high: float
    max_grad_norm: float
    threads: int


class Sample(msgspec.Struct, frozen=True):
    """One answer as ART recorded it."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]


class PlainStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the plain loop.

    Args:
        prompts: the user's messages, one per group.
        samples: answers to each.
        max_tokens: of an answer.
        recorded: per group the answers that ART sampled, which are then generated token by token instead of
            drawn; ``None`` lets the loop draw its own.
    """

    prompts: list[str]
    samples: int
    max_tokens: int
    recorded: list[list[Sample]] | None


class PlainResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a step took and found.

    Args:
        sampling_s: from the prompts' text to rewards.
        training_s: from rewards to new weights; 0 when every group's rewards were equal.
        reward: mean over all answers.
        trained: whether there was anything to learn.
        prompt_tokens, completion_tokens: of all answers.
        computed_tokens: padding included, in forward and backward.
        difference: mean absolute difference between the log-probs of the recorded tokens under this loop's
            policy and those that ART recorded; ``None`` without records or training.
    """

    sampling_s: float
    training_s: float
    reward: float
    trained: bool
    prompt_tokens: int
    completion_tokens: int
    computed_tokens: int
    difference: float | None
