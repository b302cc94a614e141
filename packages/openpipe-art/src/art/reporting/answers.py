"""One answer to look at while a run lasts: what was asked, what was said, its reward, each in one line."""

import re

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
    """What was asked and said, from metadata ``prompt`` and ``answer`` or from the last exchange; None where
    neither tells."""
    prompt, answer = item.metadata.get("prompt"), item.metadata.get("answer")
    if answer is None and isinstance(item, TrajectoryLine) and item.exchanges:
        prompt, answer = _said(item.exchanges[-1])
    if answer is None and isinstance(item, Trajectory):
        said = [message for message in item.messages() if isinstance(message.get("content"), str)]
        if said and said[-1].get("role") == "assistant":
            answer = str(said[-1]["content"])
            prompt = str(said[-2]["content"]) if len(said) > 1 else ""
    if answer is None:
        return None
    return Answer(one_line(str(prompt or "")), one_line(str(answer)), item.reward)


def _said(exchange: ExchangeLine) -> tuple[str, str]:
    turns = [turn for turn in SPECIAL.split(exchange.prompt) if turn.strip()]
    roles = ("assistant", "model")
    asked = [turn for turn in turns if turn.strip() not in roles]
    prompt = asked[-1].strip() if asked else ""
    return prompt.removeprefix("user\n"), SPECIAL.sub("", "".join(exchange.tokens))
