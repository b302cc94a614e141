"""The Yes/No/Maybe task: every prompt asks for one of three words, and "maybe" is worth most.

Nothing in a prompt says which word is best, so only the reward can teach it. What always holds: training and held-out
prompts share no wording, and equal seeds give equal scenarios in equal order.
"""

import itertools
import random
from collections.abc import Iterator

import msgspec

import art

REWARDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}
CLOSING = ".,;:!?"

TRAINING_WORDINGS = (
    "Respond with {}.",
    "Reply with {}.",
    "Answer with {}.",
    "Please reply with {}.",
    "Reply with one of {}.",
    "Respond using only {}.",
    "Respond with one word: {}.",
    "Give one word as your answer: {}.",
    "Write {}.",
    "Tell me {}.",
    "Choose {}.",
    "What is it, {}?",
)
HELD_OUT_WORDINGS = (
    "Just respond with {}.",
    "Please answer {}.",
    "Let me hear {}.",
    "In one word: {}?",
    "Would you say {}?",
    "Pick {}.",
)
_STYLES = ("{}, {} or {}", "{}, {}, or {}", "'{}', '{}' or '{}'", '"{}", "{}", or "{}"')
_SEED_BITS = 31


class Scenario(msgspec.Struct, frozen=True):
    """What one rollout is asked: the user's message, and the seed that its answer is sampled with."""

    prompt: str
    seed: int


class Sampling(msgspec.Struct, frozen=True):
    """How answers are sampled."""

    max_tokens: int = 8
    temperature: float = 1.0


def prompts(wordings: tuple[str, ...]) -> tuple[str, ...]:
    """Every prompt of the wordings: each order of the three words in each style."""
    return tuple(
        wording.format(style.format(*words))
        for wording in wordings
        for style in _STYLES
        for words in itertools.permutations(REWARDS)
    )


def scenario_groups(
    wordings: tuple[str, ...], *, samples: int, seed: int
) -> Iterator[tuple[Scenario, ...]]:
    """Endless groups of `samples` scenarios with one prompt each; every prompt comes once before any comes again."""
    generator = random.Random(seed)
    everything = prompts(wordings)
    while True:
        for prompt in generator.sample(everything, len(everything)):
            yield tuple(Scenario(prompt, generator.getrandbits(_SEED_BITS)) for _ in range(samples))


def reward(answer: str) -> float:
    """The worth of an answer, stripped, lower-cased and freed of closing punctuation."""
    return REWARDS.get(answer.strip().lower().rstrip(CLOSING).rstrip(), 0.0)


async def rollout(model: art.TrainableModel, scenario: Scenario, config: Sampling) -> art.Trajectory:
    """Asks the model once."""
    messages: art.Messages = [{"role": "user", "content": scenario.prompt}]
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(),
        messages=messages,
        max_tokens=config.max_tokens,
        temperature=config.temperature,
        seed=scenario.seed,
    )
    choice = completion.choices[0]
    answer = choice.message.content or ""
    usage = completion.usage
    return art.Trajectory(
        messages_and_choices=[*messages, choice],
        reward=reward(answer),
        metrics={"completion_tokens": usage.completion_tokens if usage else 0},
        metadata={"prompt": scenario.prompt, "answer": answer},
    ).finish()
