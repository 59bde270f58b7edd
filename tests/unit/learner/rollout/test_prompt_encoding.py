"""Token ids of prompts, worked out by hand over a vocabulary of words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.models import tiny_tokenizer
from transformers import PreTrainedTokenizerFast

from antiphon.clients.types import ChatMessage, Completion, FieldError, FinishReason, WeightsSpan
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.config.prompts import check_prompt_settings
from antiphon.learner.rollout.prompt_encoding import PromptEncoder, prompt_encoders

TURN = "<|turn|>"
WORDS = (TURN, "user", "assistant", "system", "red", "green", "blue", "one", "two", "ask")
# As ChatML: a turn is its role, its content and an end; the model samples the end itself.
CHATML = (
    "{{ bos_token }} {% for m in messages %}{{ m['role'] }} {{ m['content'] | trim }} "
    "<|turn|> {% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
)


@pytest.fixture
def tokenizer(tmp_path: Path) -> PreTrainedTokenizerFast:
    made = tiny_tokenizer(tmp_path, add_bos=True, words=WORDS[1:])
    made.chat_template = CHATML
    return made


def encoder(tokenizer: PreTrainedTokenizerFast, agent: int = 0, **settings: Any) -> PromptEncoder:
    return PromptEncoder(MAGRPOConfig(**settings), agent, tokenizer)


def ids(tokenizer: PreTrainedTokenizerFast, words: str) -> tuple[int, ...]:
    """One id per word of the vocabulary."""
    found = tokenizer.convert_tokens_to_ids(words.split())
    assert tokenizer.unk_token_id not in found
    return tuple(found)


def answer(tokenizer: PreTrainedTokenizerFast, words: str, *, cut: bool = False) -> Completion:
    token_ids = ids(tokenizer, words)
    return Completion(
        prompt_index=0,
        sample_index=0,
        text=words,
        token_ids=token_ids,
        logprobs=(-0.5,) * len(token_ids),
        kept_sizes=(3,) * len(token_ids),
        finish_reason=FinishReason.LENGTH if cut else FinishReason.END_TOKEN,
        prompt_token_ids=(),
        weights_spans=(WeightsSpan(0, 1),),
        instance_id="i",
        boot_id="b",
    )


def user(content: str) -> tuple[ChatMessage, ...]:
    return (ChatMessage("user", content),)


def test_a_text_is_taken_as_it_is(tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = encoder(tokenizer).encode("red green")
    assert (prompt.token_ids, prompt.chat) == (ids(tokenizer, "<s> red green"), False)


def test_a_chat_gets_the_template_once_and_one_begin_token(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    """L14: the tokenizer adds a begin token to texts, the template writes its own: one is there."""
    prompt = encoder(tokenizer).encode(user("red green"))
    assert prompt.token_ids == ids(tokenizer, f"<s> user red green {TURN} assistant")
    assert prompt.chat


def test_a_text_can_become_one_user_message_and_stays_a_text_for_user_code(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    prompt = encoder(tokenizer, apply_chat_template=True).encode("red green")
    assert prompt.token_ids == ids(tokenizer, f"<s> user red green {TURN} assistant")
    assert (prompt.content, prompt.chat) == ("red green", True)


def test_a_system_prompt_comes_first_unless_the_chat_has_its_own(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    one = encoder(tokenizer, apply_chat_template=True, system_prompt="blue")
    expected = ids(tokenizer, f"<s> system blue {TURN} user red {TURN} assistant")
    assert one.encode("red").token_ids == one.encode(user("red")).token_ids == expected
    own = (ChatMessage("system", "green"), *user("red"))
    assert one.encode(own).token_ids == ids(
        tokenizer, f"<s> system green {TURN} user red {TURN} assistant"
    )


def test_settings_can_differ_by_agent(tokenizer: PreTrainedTokenizerFast) -> None:
    config = MAGRPOConfig(apply_chat_template=(True, False), system_prompt=("blue", None))
    chat, text = prompt_encoders(config, [tokenizer, tokenizer])
    assert chat.encode("red").token_ids == ids(
        tokenizer, f"<s> system blue {TURN} user red {TURN} assistant"
    )
    assert text.encode("red").token_ids == ids(tokenizer, "<s> red")


@pytest.mark.parametrize("name", ["system_prompt", "apply_chat_template"])
def test_a_list_has_one_entry_per_agent(name: str) -> None:
    given: dict[str, Any] = {name: ["a", "b"] if name == "system_prompt" else [True, False]}
    config = MAGRPOConfig(**given)
    check_prompt_settings(config, 2)
    with pytest.raises(FieldError, match=f"{name}: got 2 of them, wanted one, or 3"):
        check_prompt_settings(config, 3)


def test_a_system_prompt_for_a_text_says_what_to_do(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(FieldError, match=r"system_prompt.*agent 1.*apply_chat_template=True"):
        encoder(tokenizer, 1, system_prompt="blue").encode("red")


def test_a_tokenizer_without_a_chat_template_is_refused_and_told_what_to_do(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokenizer.chat_template = None
    wanted = r"tokenizer of agent 1: got no chat template.*apply_chat_template=False"
    with pytest.raises(FieldError, match=wanted):
        encoder(tokenizer, 1, apply_chat_template=True)
    with pytest.raises(FieldError, match=wanted):
        encoder(tokenizer, 1).encode(user("red"))


def test_messages_that_the_template_refuses_are_named(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "{{ raise_exception('no such role') }}"
    with pytest.raises(FieldError, match=r"agent 0.*roles system, user.*no such role"):
        encoder(tokenizer, system_prompt="blue").encode(user("red"))


def test_an_appended_chat_goes_on_token_for_token(tokenizer: PreTrainedTokenizerFast) -> None:
    """L4: the end token within the second prompt cuts nothing."""
    one = encoder(tokenizer, apply_chat_template=True, system_prompt="blue", conversation="append")
    first = one.encode("red")
    second = one.append(first, answer(tokenizer, f"one two {TURN}"), "green")
    begin = f"<s> system blue {TURN} user red {TURN} assistant one two {TURN}"
    assert second.token_ids == ids(tokenizer, f"{begin} user green {TURN} assistant")
    third = one.append(second, answer(tokenizer, TURN), user("blue"))
    assert third.token_ids == second.token_ids + ids(
        tokenizer, f"{TURN} user blue {TURN} assistant"
    )
    assert third.content == user("blue")


def test_an_answer_that_was_cut_gets_the_end_of_its_turn(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    one = encoder(tokenizer, conversation="append")
    second = one.append(one.encode(user("red")), answer(tokenizer, "one", cut=True), user("green"))
    assert second.token_ids == ids(
        tokenizer, f"<s> user red {TURN} assistant one {TURN} user green {TURN} assistant"
    )


def test_another_end_token_stays_and_the_template_closes_the_turn_after_it(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    one = encoder(tokenizer, conversation="append")
    second = one.append(one.encode(user("red")), answer(tokenizer, "one </s>"), "green")
    assert second.token_ids == ids(
        tokenizer, f"<s> user red {TURN} assistant one </s> {TURN} user green {TURN} assistant"
    )


def test_of_an_end_of_turn_in_several_tokens_only_what_follows_the_sampled_one_is_added(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokenizer.chat_template = CHATML.replace("<|turn|>", "two <|turn|> </s>")
    one = encoder(tokenizer, conversation="append")
    first = one.encode(user("red"))
    added = one.append(first, answer(tokenizer, f"one {TURN}"), "green").token_ids
    assert added == first.token_ids + ids(
        tokenizer, f"one {TURN} </s> user green two {TURN} </s> assistant"
    )


def test_a_template_without_an_end_of_turn_adds_none(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = CHATML.replace("<|turn|> ", "")
    one = encoder(tokenizer, conversation="append")
    second = one.append(one.encode(user("red")), answer(tokenizer, "one </s>"), "green")
    assert second.token_ids == ids(
        tokenizer, "<s> user red assistant one </s> user green assistant"
    )


def test_a_new_turn_does_not_bring_the_begin_of_the_conversation_again(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    """L14: a template that starts with a system message of its own says it once."""
    tokenizer.chat_template = CHATML.replace(
        "{{ bos_token }}",
        "{{ bos_token }} {% if messages[0]['role'] != 'system' %}system blue <|turn|>{% endif %}",
    )
    one = encoder(tokenizer, conversation="append")
    second = one.append(one.encode(user("red")), answer(tokenizer, f"one {TURN}"), "green")
    assert second.token_ids == ids(
        tokenizer,
        f"<s> system blue {TURN} user red {TURN} assistant one {TURN} user green {TURN} assistant",
    )


def test_an_appended_text_goes_on_without_end_token_and_special_tokens(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    """L14: the tokenizer's begin token comes once, at the beginning."""
    one = encoder(tokenizer, conversation="append")
    first = one.encode("red")
    second = one.append(first, answer(tokenizer, "one two </s>"), "green")
    assert second.token_ids == ids(tokenizer, "<s> red one two green")
    cut = one.append(second, answer(tokenizer, "one", cut=True), "blue")
    assert cut.token_ids == ids(tokenizer, "<s> red one two green one blue")
    assert not cut.chat


def test_what_cannot_go_on_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    one = encoder(tokenizer, conversation="append")
    said = answer(tokenizer, f"one {TURN}")
    with pytest.raises(FieldError, match=r"agent 0.*before was a text.*apply_chat_template=True"):
        one.append(one.encode("red"), said, user("green"))
    whole = (*user("red"), ChatMessage("assistant", "one"), *user("green"))
    with pytest.raises(FieldError, match="the new messages only"):
        one.append(one.encode(user("red")), said, whole)


def test_a_template_that_hides_answers_is_refused_at_the_first_chat(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }} {% endfor %}"
    with pytest.raises(FieldError, match=r"conversation.*agent 0.*changes answers"):
        encoder(tokenizer, apply_chat_template=True, conversation="append")
    encoder(tokenizer, apply_chat_template=True)  # standing alone, no answer is shown
