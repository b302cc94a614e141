"""One answer to look at while a run lasts: what was asked, what was said, its reward, each in one line."""

import re
from collections.abc import Sequence

from art.reporting.events import Answer
from art.reporting.run_folder import ExchangeLine, TrajectoryLine
from art.trajectories import Rollout, Trajectory

SPECIAL = re.compile(r"<\|[^|<>\s]{1,40}\|>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>")
"""Tokens of chat templates that are written between turns."""

_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+")
_MOST_CHARACTERS = 400


def one_line(text: str) -> str:
    """The text without line ends and what a terminal would act on; cut where it is very long."""
    return " ".join(_UNSEEN.sub(" ", text[:_MOST_CHARACTERS]).split())


def answer_of(item: Rollout | TrajectoryLine) -> Answer | None:
    """What was asked and said; each from metadata ``prompt`` and ``answer``, or else from the last exchange.
    None where nothing tells the answer."""
    prompt, answer = item.metadata.get("prompt"), item.metadata.get("answer")
    if prompt is None or answer is None:
        asked, said = _exchanged(item)
        prompt = asked if prompt is None else prompt
        answer = said if answer is None else answer
    if answer is None:
        return None
    return Answer(one_line(str(prompt or "")), one_line(str(answer)), item.reward)


def one_answer(lines: Sequence[TrajectoryLine], number: int) -> Answer | None:
    """One of a step's answers, in turn by its ``number``; of those with tokens where others do not tell what
    was asked."""
    found = answer_of(lines[number % len(lines)])
    if found is not None and found.prompt:
        return found
    kept = [line for line in lines if line.exchanges]
    return answer_of(kept[number % len(kept)]) if kept else found


def _exchanged(item: Rollout | TrajectoryLine) -> tuple[str | None, str | None]:
    """What the model was asked last and what it said, where that is known."""
    if isinstance(item, TrajectoryLine) and item.exchanges:
        return _said(item.exchanges[-1])
    if isinstance(item, Trajectory):
        said = [message for message in item.messages() if isinstance(message.get("content"), str)]
        if said and said[-1].get("role") == "assistant":
            return str(said[-2]["content"]) if len(said) > 1 else "", str(said[-1]["content"])
    return None, None


def _said(exchange: ExchangeLine) -> tuple[str, str]:
    turns = [turn for turn in SPECIAL.split(exchange.prompt) if turn.strip()]
    roles = ("assistant", "model")
    asked = [turn for turn in turns if turn.strip() not in roles]
    prompt = asked[-1].strip() if asked else ""
    return prompt.removeprefix("user\n"), SPECIAL.sub("", "".join(exchange.tokens))
