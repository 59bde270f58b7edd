"""Prompts as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.clients.types import ChatMessage, FieldError
from antiphon.learner.data.chats import read_prompt, shown

USER = {"role": "user", "content": "hi"}


def test_a_text_stays_as_it_is() -> None:
    assert read_prompt("p", " as it is\n") == " as it is\n"


@pytest.mark.parametrize("chat", [[USER], (USER,), [ChatMessage("user", "hi")]])
def test_a_chat_is_a_list_of_messages(chat: Any) -> None:
    assert read_prompt("p", chat) == (ChatMessage("user", "hi"),)


def test_keys_that_a_table_filled_with_none_are_absent() -> None:
    assert read_prompt("p", [{**USER, "name": None}]) == (ChatMessage("user", "hi"),)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (" \n", "p: got .* not empty"),
        ([], "not empty"),
        ([{"role": "user", "content": " "}], "not empty"),
        (None, "p: got NoneType None, wanted a text, or a list of chat messages"),
        ({"role": "user", "content": "hi"}, "p: got dict"),
        (["hi"], r"p\[0\]: got str 'hi', wanted a dict"),
        ([USER, {"content": "hi"}], r"p\[1\].*role"),
        ([{"role": "", "content": "hi"}], r"p\[0\].*role"),
        ([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], r"p\[0\].*content"),
        ([{**USER, "name": "Ada"}], r"p\[0\]: got the key 'name'"),
    ],
)
def test_what_is_no_prompt_is_named(value: Any, message: str) -> None:
    with pytest.raises(FieldError, match=message):
        read_prompt("p", value)


def test_a_chat_is_shown_by_its_contents() -> None:
    assert shown("text") == "text"
    assert shown([USER, {"role": "user", "content": "there"}]) == "hi\nthere"
    assert shown((ChatMessage("user", "hi"),)) == "hi"
