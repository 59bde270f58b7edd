"""Prompts in, text out."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.support.models import tiny_tokenizer

from antiphon.clients.types import ChatMessage, FieldError, TokenIds
from antiphon.services.generation.codec import Codec


def test_a_character_that_the_end_cuts_in_two_is_left_out(tmp_path: Path) -> None:
    """U8: emoji and accents whose bytes are split over tokens come whole or not at all."""
    tokenizer = tiny_tokenizer(tmp_path, kind="bytes")
    codec = Codec(tokenizer, len(tokenizer))
    for text in ("the 🐉 sings", "fiancée", "答え 🎵🎶"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert codec.decode(ids) == text
        for cut in range(len(ids) + 1):
            assert "\ufffd" not in codec.decode(ids[:cut])
            assert text.startswith(codec.decode(ids[:cut]))
    dragon = tokenizer("🐉", add_special_tokens=False)["input_ids"]
    assert len(dragon) == 4
    assert codec.decode(dragon[:3]) == ""
    assert codec.decode([*dragon[:2], *tokenizer("an", add_special_tokens=False)["input_ids"]]) == (
        "an"
    )


def test_special_tokens_are_not_part_of_the_text(tmp_path: Path) -> None:
    """L16: a completion of the end token alone is the empty text."""
    tokenizer = tiny_tokenizer(tmp_path)
    codec = Codec(tokenizer, len(tokenizer))
    red = tokenizer.convert_tokens_to_ids("red")
    assert codec.decode([tokenizer.eos_token_id]) == ""
    assert codec.decode([]) == ""
    assert codec.decode([red, tokenizer.pad_token_id, red, tokenizer.eos_token_id]) == "red red"


def test_token_ids_are_used_as_they_are_special_ones_in_their_middle_too(tmp_path: Path) -> None:
    """L4: nothing is cut at a pad or end id inside of a prompt."""
    tokenizer = tiny_tokenizer(tmp_path)
    codec = Codec(tokenizer, len(tokenizer))
    ids = (7, tokenizer.pad_token_id, 8, tokenizer.eos_token_id, 9)
    assert codec.encode(TokenIds(ids), "prompts[0].prompt") == ids


def test_ids_outside_of_the_vocabulary_and_empty_prompts_are_refused_by_place(
    tmp_path: Path,
) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    codec = Codec(tokenizer, 30)
    with pytest.raises(FieldError, match=r"prompts\[2\].prompt.token_ids.ids\[1\]: got 30,.*29"):
        codec.encode(TokenIds((5, 30)), "prompts[2].prompt")
    with pytest.raises(FieldError, match=r"prompts\[0\].prompt: got no tokens"):
        codec.encode(TokenIds(()), "prompts[0].prompt")


def test_text_and_chat_may_be_encoded_and_decoded_from_many_threads(tmp_path: Path) -> None:
    """A tokenizer without pad token (L15), whose own object does not bear two users at once."""
    tokenizer = tiny_tokenizer(tmp_path, kind="bytes", pad=False)
    codec = Codec(tokenizer, len(tokenizer))
    text = "the dragon again " * 20
    wanted = codec.encode(text, "p"), codec.encode((ChatMessage("user", text),), "p")
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                assert codec.encode(text, "p") == wanted[0]
                assert codec.encode((ChatMessage("user", text),), "p") == wanted[1]
                assert codec.decode(wanted[0]) == text
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
