"""Each token's text; together they are the whole."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from art.reporting.token_texts import token_texts
from art.reporting.trajectory_lines import read_tokenizer


@pytest.fixture
def byte_level(tokenizer_folder: Path) -> Tokenizer:
    return read_tokenizer(tokenizer_folder)


@pytest.fixture(scope="module")
def metaspace() -> Tokenizer:
    """As of the Llama 2 kind: a leading space belongs to the token, and is dropped at the start of a text."""
    words = {"▁a": 0, "▁maybe": 1, "b": 2, ".": 3, "▁": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="."))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def test_a_character_of_several_tokens_stands_at_the_last(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("aé€!").ids
    assert len(ids) == 1 + 2 + 3 + 1
    assert token_texts(byte_level, ids) == ("a", "", "é", "", "", "€", "!")


def test_bytes_that_become_no_character_stand_as_the_whole_text_has_them(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a€b").ids
    cut = [ids[0], ids[1], ids[4]]  # the first byte of three, then "b"
    assert token_texts(byte_level, cut) == ("a", "\ufffd", "b")
    assert "".join(token_texts(byte_level, ids[:3])) == byte_level.decode(ids[:3])


def test_special_tokens_are_shown(byte_level: Tokenizer) -> None:
    end = byte_level.token_to_id("<|end|>")
    assert token_texts(byte_level, [*byte_level.encode("no").ids, end]) == ("n", "o", "<|end|>")


def test_a_leading_space_is_dropped_at_the_start_only(metaspace: Tokenizer) -> None:
    assert token_texts(metaspace, [1, 1, 2, 0, 3]) == ("maybe", " maybe", "b", " a", ".")


def test_nothing_gives_nothing(byte_level: Tokenizer) -> None:
    assert token_texts(byte_level, []) == ()


@given(data=st.data())
def test_together_they_are_what_the_sequence_decodes_to(data: st.DataObject, metaspace: Tokenizer) -> None:
    ids = data.draw(st.lists(st.integers(0, 4), max_size=40))
    texts = token_texts(metaspace, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == metaspace.decode(ids, skip_special_tokens=False)


def test_any_bytes_together_are_what_they_decode_to(byte_level: Tokenizer) -> None:
    @given(st.lists(st.integers(0, 256), max_size=60))
    def together(ids: list[int]) -> None:
        texts = token_texts(byte_level, ids)
        assert len(texts) == len(ids)
        assert "".join(texts) == byte_level.decode(ids, skip_special_tokens=False)

    together()


@pytest.mark.parametrize("text", ["plain ascii", "naïve Ångström", "日本語 🙂👍🏽"])
def test_text_is_text(byte_level: Tokenizer, text: str) -> None:
    texts = token_texts(byte_level, byte_level.encode(text).ids)
    assert "".join(texts) == text
    assert [piece for piece in texts if piece] == list(text)
