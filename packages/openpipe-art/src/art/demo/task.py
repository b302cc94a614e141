"""The Yes/No/Maybe task: every prompt asks for one of three words, and "maybe" is worth most.

Nothing in a prompt says which word is best, so only the reward can teach it. What always holds: training and
held-out prompts share no wording, and equal seeds give equal scenarios in equal order.
"""

import collections
import random
from collections.abc import Iterator, Sequence

import msgspec

import art

REWARDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}
CLOSING = ".,;:!?"

TRAINING_WORDINGS = (
    "Use one word as your reply: {}.",
    "Answer with one of these words: {}.",
    "Answer in one word: {}.",
    "One word only: {}.",
    "Pick one of these words: {}.",
    "Choose one word: {}.",
    "Give one of these words as your answer: {}.",
    "A one-word reply, please: {}.",
    "Your one-word answer: {}.",
)
HELD_OUT_WORDINGS = (
    "Reply with a single word: {}.",
    "Say one word: {}.",
    "In a single word, {}.",
    "Give me one word: {}.",
    "Respond using only {}.",
    "Which word is your answer: {}?",
)
# The untrained model says each of the words now and then to these, else there would be nothing to reinforce;
# with "maybe" last, or in quotes, it hardly ever says it.
ORDERS = (("maybe", "no", "yes"), ("no", "maybe", "yes"), ("yes", "no", "maybe"))
_STYLES = ("{}, {} or {}", "{}, {}, or {}", "{}, {}, {}", "{} or {} or {}")
_SEED_BITS = 31


class Scenario(msgspec.Struct, frozen=True):
    """What one rollout is asked: the user's message, and the seed that its answer is sampled with."""

    prompt: str
    seed: int


class Sampling(msgspec.Struct, frozen=True):
    """How answers are sampled."""

    max_tokens: int = 8
    temperature: float = 1.0


SAMPLING = Sampling()


def prompts(wordings: tuple[str, ...]) -> tuple[str, ...]:
    """Every prompt of the wordings: each of the orders in each style."""
    return tuple(
        wording.format(style.format(*words)) for wording in wordings for style in _STYLES for words in ORDERS
    )


def all_prompts() -> tuple[str, ...]:
    """What a run may ask, while it trains and while it evaluates."""
    return prompts(TRAINING_WORDINGS + HELD_OUT_WORDINGS)


def scenario_groups(wordings: tuple[str, ...], *, samples: int, seed: int) -> Iterator[tuple[Scenario, ...]]:
    """Endless groups of `samples` scenarios with one prompt; all prompts come once before one comes again."""
    generator = random.Random(seed)
    everything = prompts(wordings)
    while True:
        for prompt in generator.sample(everything, len(everything)):
            yield tuple(Scenario(prompt, generator.getrandbits(_SEED_BITS)) for _ in range(samples))


def word(answer: str) -> str | None:
    """Which of the three words an answer is, or None; stripped, lower-cased, freed of closing punctuation."""
    bare = answer.strip().lower().rstrip(CLOSING).rstrip()
    return bare if bare in REWARDS else None


def reward(answer: str) -> float:
    """The worth of an answer: that of its word, or 0."""
    found = word(answer)
    return 0.0 if found is None else REWARDS[found]


def summary(groups: Sequence[art.TrajectoryGroup]) -> str:
    """How often each word was said: `yes 3  no 1  maybe 0  other 60`."""
    said = collections.Counter(word(str(item.metadata["answer"])) for group in groups for item in group)
    return "  ".join([*(f"{name} {said[name]:<2}" for name in REWARDS), f"other {said[None]}"])
