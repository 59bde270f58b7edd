"""Formatters, with CoMLRL's semantics."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.clients.types import ChatMessage, FieldError
from antiphon.learner.data.formatters import Prompts

ITEM = {"prompt": "Describe a city:", "style": {"tone": "dry"}}


def test_without_formatters_the_prompt_is_the_items_then_the_transitions() -> None:
    prompts = Prompts(None, 2)
    assert prompts.first(1, ITEM) == "Describe a city:"
    assert prompts.later(1, ITEM, "Longer, please.") == "Longer, please."
    assert prompts.needed_columns == ("prompt",)


def test_one_formatter_serves_all_agents() -> None:
    prompts = Prompts(lambda item: f"<{item['prompt']}>", 3)
    assert [prompts.first(agent, ITEM) for agent in range(3)] == ["<Describe a city:>"] * 3
    assert prompts.needed_columns == ()


def test_one_formatter_per_agent() -> None:
    prompts = Prompts([lambda item: "a " + item["prompt"], None], 2)
    assert prompts.first(0, ITEM) == "a Describe a city:"
    assert prompts.first(1, ITEM) == "Describe a city:"
    assert prompts.needed_columns == ("prompt",)


def test_on_later_turns_the_item_holds_the_transitions_prompt() -> None:
    prompts = Prompts(lambda item: f"{item['style']['tone']}: {item['prompt']}", 1)
    assert prompts.later(0, ITEM, "Again.") == "dry: Again."


def test_a_formatter_that_takes_external_prompts_gets_them_on_later_turns_only() -> None:
    seen: list[Any] = []

    def formatter(item: dict[str, Any], external_prompts: str | None = "not passed") -> str:
        seen.append((item["prompt"], external_prompts))
        return "x"

    prompts = Prompts(formatter, 1)
    prompts.first(0, ITEM)
    prompts.later(0, ITEM, "Again.")
    assert seen == [("Describe a city:", "not passed"), ("Again.", "Again.")]


def test_external_prompts_without_a_default_is_none_on_the_first_turn() -> None:
    prompts = Prompts(lambda item, external_prompts: str(external_prompts), 1)
    assert prompts.first(0, ITEM) == "None"
    assert prompts.later(0, ITEM, "Again.") == "Again."


def test_passthrough_uses_the_transitions_prompt_verbatim() -> None:
    prompts = Prompts(lambda item: "formatted", 1, passthrough=True)
    assert prompts.first(0, ITEM) == "formatted"
    assert prompts.later(0, ITEM, " as it is\n") == " as it is\n"


def test_the_users_item_is_never_changed() -> None:
    item = {"prompt": "p", "nested": {"list": [1]}}

    def vandal(row: dict[str, Any]) -> str:
        row["nested"]["list"].append(2)
        row["prompt"] = "gone"
        row["new"] = 1
        return "x"

    prompts = Prompts(vandal, 1)
    prompts.first(0, item)
    prompts.later(0, item, "next")
    assert item == {"prompt": "p", "nested": {"list": [1]}}


def test_a_wrong_number_of_formatters_is_refused() -> None:
    with pytest.raises(FieldError, match="formatters: got 3 of them, wanted one, or 2"):
        Prompts([None, None, None], 2)


@pytest.mark.parametrize("formatters", ["{prompt}", 3, [str, "text"]])
def test_what_is_no_function_is_refused(formatters: Any) -> None:
    with pytest.raises(FieldError, match="formatters"):
        Prompts(formatters, 2)


def test_a_formatter_that_cannot_be_called_with_an_item_is_refused_at_start() -> None:
    def two_items(first: dict[str, Any], second: dict[str, Any]) -> str:
        return ""

    with pytest.raises(FieldError, match=r"formatters\[0\].*two_items.*wanted f\(item\)"):
        Prompts(two_items, 2)


@pytest.mark.parametrize("result", ["", "  \n", None, 3, b"bytes", [], [{"role": "user"}]])
def test_a_result_that_is_no_prompt_names_agent_and_function(result: Any) -> None:
    def broken(item: dict[str, Any]) -> Any:
        return result

    with pytest.raises(FieldError, match=r"formatters\[1\].*broken"):
        Prompts([None, broken], 2).first(1, ITEM)


def test_chat_messages_come_from_a_column_a_formatter_or_a_transition() -> None:
    chat, read = [{"role": "user", "content": "hi"}], (ChatMessage("user", "hi"),)
    assert Prompts(None, 1).first(0, {"prompt": chat}) == read
    assert Prompts(lambda item: chat, 1).first(0, ITEM) == read
    assert Prompts(None, 1).later(0, ITEM, read) == read


def test_a_formatter_sees_a_transitions_chat_as_a_list_of_dicts() -> None:
    chat = [{"role": "user", "content": "hi"}]

    def formatter(item: dict[str, Any], external_prompts: Any = None) -> Any:
        assert external_prompts in (None, chat)
        return [{"role": "system", "content": "be brief"}, *item["prompt"]]

    assert Prompts(formatter, 1).later(0, ITEM, (ChatMessage("user", "hi"),)) == (
        ChatMessage("system", "be brief"),
        ChatMessage("user", "hi"),
    )


def test_an_empty_prompt_column_is_refused() -> None:
    with pytest.raises(FieldError, match="prompt"):
        Prompts(None, 1).first(0, {"prompt": ""})


def test_an_exception_of_the_formatter_travels() -> None:
    with pytest.raises(ZeroDivisionError):
        Prompts(lambda item: str(1 / 0), 1).first(0, ITEM)
