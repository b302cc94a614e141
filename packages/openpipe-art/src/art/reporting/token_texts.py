"""The text of each token of a sequence."""

import itertools
from collections.abc import Sequence
from typing import Protocol


class Decoder(Protocol):
    """What is needed of ``tokenizers.Tokenizer``."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of the tokens."""
        ...


def token_texts(decoder: Decoder, ids: Sequence[int]) -> tuple[str, ...]:
    """One text per token; together they are what the whole sequence decodes to, special tokens included.

    A character whose UTF-8 bytes several tokens share stands at the last of them, and the others are empty;
    bytes that never become a character stand as U+FFFD where the whole text has them. The cost is linear for
    the tokenizers in use, since only the tokens since the last whole character are decoded again.
    """
    ids = list(ids)
    whole = decoder.decode(ids, skip_special_tokens=False)
    # Tokens [context, start) are decoded along with the new ones, since a decoder may treat the first token
    # of a text differently (some drop its leading space); ``known`` is the length of their text. Everything
    # before ``start`` has its text, ``done`` characters of the whole.
    context = start = known = done = 0
    ends: list[int] = []
    for end in range(1, len(ids) + 1):
        text = decoder.decode(ids[context:end], skip_special_tokens=False)[known:]
        if text and whole.startswith(text, done):
            done += len(text)
            context, start = start, end
            known = len(decoder.decode(ids[context:start], skip_special_tokens=False))
        ends.append(done)
    if ends:
        ends[-1] = len(whole)
    return tuple(whole[begin:end] for begin, end in itertools.pairwise([0, *ends]))
