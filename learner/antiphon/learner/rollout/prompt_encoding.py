"""Prompts to token ids: text as it is, chat under the tokenizer's template, or appended.

An appended prompt goes on token for token:

    chat   ids of the prompt before + ids of the answer + the template's text between an answer and
           the next one: the end of the answer's turn, the new messages, the generation prompt
    text   ids of the prompt before + ids of the answer without its end token + ids of the new text

Nothing that was said is encoded again, so the ids of turn t are the beginning of those of turn
t + 1. In a chat the end token stays as it was sampled, and of the template's end of turn only what
follows that token is added; an answer that was cut gets all of it. A text has no turns: an end
token in its middle would tell the model that all before it is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

import jinja2

from antiphon.clients.types import Chat, ChatMessage, Completion, FieldError, FinishReason
from antiphon.learner.config.prompts import (
    PromptConfig,
    applies_chat_template,
    system_prompt_of,
)
from antiphon.learner.data.chats import messages_of
from antiphon.learner.rollout.tree import AgentPrompt
from antiphon.services.common.models import encode_prompt, encode_text, render_chat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ANSWER = "<<the answer>>"
"""Stands for an answer where the template is asked what comes after one."""


class PromptEncoder:
    """Makes the token ids of one agent's prompts.

    Args:
        config: Says which prompts are chats, and whether conversations go on.
        agent: Whose prompts, for the settings and errors.
        tokenizer: The agent's; left as it is.
        context: Most tokens that its model takes; of a text that is far longer the ids of its
            beginning are given, which do not fit either. None where that is not known.

    Raises:
        FieldError: Prompts are to become chats and the tokenizer has no chat template, or one that
            a conversation cannot go on under.
    """

    def __init__(
        self,
        config: PromptConfig,
        agent: int,
        tokenizer: PreTrainedTokenizerBase,
        context: int | None = None,
    ) -> None:
        self._context = context
        self._agent = agent
        self._tokenizer = tokenizer
        self._wraps = applies_chat_template(config, agent)
        self._system_prompt = system_prompt_of(config, agent)
        self.appends = config.conversation == "append"
        self._template_tried = False
        if self._wraps:
            self._try_template()

    def encode(self, content: str | Chat) -> AgentPrompt:
        """The ids of a prompt that stands alone.

        Raises:
            FieldError: It is a chat and the template does not take it, or it is a text and there is
                a system prompt.
        """
        if isinstance(content, str) and not self._wraps:
            if self._system_prompt is not None:
                raise FieldError(
                    "system_prompt",
                    f"one for agent {self._agent}, and a prompt that is text: {content!r:.80}",
                    "apply_chat_template=True, or prompts that are chat messages",
                )
            ids = encode_prompt(self._tokenizer, content, enough=self._context)
            return AgentPrompt(content, tuple(ids), plain=content)
        self._try_template()
        messages = messages_of(content)
        if self._system_prompt is not None and messages[0].role != "system":
            messages = (ChatMessage("system", self._system_prompt), *messages)
        ids = self._ids(self._rendered(messages))
        return AgentPrompt(content, tuple(ids), chat=True, plain=messages)

    def append(self, before: AgentPrompt, answer: Completion, content: str | Chat) -> AgentPrompt:
        """The ids of a prompt that goes on after what was asked and answered.

        Args:
            before: The agent's prompt of the turn before.
            answer: What it answered.
            content: What is said now: a text, in a chat one user message, or the new messages.

        Raises:
            FieldError: A text is to go on with a chat, or the new messages hold an answer.
        """
        ended = answer.finish_reason is FinishReason.END_TOKEN
        if before.chat:
            said = answer.token_ids + self._after(answer.token_ids[-1] if ended else None, content)
        elif isinstance(content, str):
            kept = answer.token_ids[:-1] if ended else answer.token_ids
            said = (*kept, *self._ids(content))
        else:
            raise FieldError(
                "conversation",
                f"chat messages for agent {self._agent}, whose prompt before was a text",
                "a text, or apply_chat_template=True, so that the first prompt is a chat too",
            )
        ids = before.token_ids + said
        return replace(before, content=content, token_ids=ids, plain="")

    def _after(self, end: int | None, content: str | Chat) -> tuple[int, ...]:
        """The template's ids from an answer to the next one; `end` is the answer's end token."""
        messages = messages_of(content)
        if any(message.role == "assistant" for message in messages):
            raise FieldError(
                "conversation",
                f"an assistant message in what agent {self._agent} is told next",
                'the new messages only, as the answer is there already; or conversation="replace"',
            )
        asked = (ChatMessage("user", "ask"), ChatMessage("assistant", _ANSWER))
        after = self._after_answer((*asked, *messages), opens=True)
        ids = self._ids(after)
        if end is None:
            return tuple(ids)
        closing = _shared_beginning(after, self._after_answer(asked, opens=False))
        of_closing = ids[: len(self._ids(closing))]
        return tuple(ids[of_closing.index(end) + 1 :] if end in of_closing else ids)

    def _ids(self, text: str) -> list[int]:
        return encode_text(self._tokenizer, text, enough=self._context)

    def _after_answer(self, messages: Chat, *, opens: bool) -> str:
        before, found, after = self._rendered(messages, opens=opens).rpartition(_ANSWER)
        if not found or _ANSWER in before:
            raise FieldError(
                "conversation",
                f"a chat template of agent {self._agent}'s tokenizer that changes answers",
                'one that shows them once and as they are, or conversation="replace"',
            )
        return after

    def _rendered(self, messages: Chat, *, opens: bool = True) -> str:
        try:
            return render_chat(self._tokenizer, messages, add_generation_prompt=opens)
        except jinja2.TemplateError as error:
            roles = ", ".join(message.role for message in messages)
            raise FieldError(
                f"prompt of agent {self._agent}",
                f"messages of the roles {roles}, which the chat template refuses: {error}",
                "messages that the tokenizer's chat template takes",
            ) from error

    def _try_template(self) -> None:
        """Refuse a tokenizer that cannot do what the settings ask for, at the first chat."""
        if self._template_tried:
            return
        if getattr(self._tokenizer, "chat_template", None) is None:
            raise FieldError(
                f"tokenizer of agent {self._agent}",
                "no chat template, for prompts that are chat messages",
                "the tokenizer of a model made for chat, one whose chat_template is set, or text "
                "prompts with apply_chat_template=False",
            )
        if self.appends:
            self._after(None, "go on")
        self._template_tried = True


def _shared_beginning(one: str, other: str) -> str:
    pairs = zip(one, other, strict=False)
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def prompt_encoders(
    config: PromptConfig,
    tokenizers: Sequence[PreTrainedTokenizerBase],
    contexts: Sequence[int | None] | None = None,
) -> list[PromptEncoder]:
    """One encoder per agent, agent 0 first.

    Args:
        config: As for `PromptEncoder`.
        tokenizers: The agents'.
        contexts: The most tokens that each agent's model takes, where known.

    Raises:
        FieldError: As `PromptEncoder`.
    """
    limits = contexts or [None] * len(tokenizers)
    return [
        PromptEncoder(config, agent, tokenizer, limit)
        for agent, (tokenizer, limit) in enumerate(zip(tokenizers, limits, strict=True))
    ]
