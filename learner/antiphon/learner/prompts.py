"""What agents are asked: formatted on the main thread, tokenised with each agent's tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from antiphon.clients.types import Chat, Task
from antiphon.learner.formatters import Prompts
from antiphon.learner.scoring import OnMainThread
from antiphon.learner.tree import AgentPrompt
from antiphon.services.common.models import encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TokenizedPrompts:
    """Writes and tokenises every agent's prompts.

    Args:
        prompts: The formatters.
        tokenizers: One per agent, agent 0 first; they are left as they are.
        on_main_thread: Runs the formatters, which are user code.
    """

    def __init__(
        self,
        prompts: Prompts,
        tokenizers: Sequence[PreTrainedTokenizerBase],
        on_main_thread: OnMainThread,
    ) -> None:
        self._prompts = prompts
        self._tokenizers = tokenizers
        self._on_main_thread = on_main_thread

    async def first(self, task: Task) -> tuple[AgentPrompt, ...]:
        """The prompts of turn 1, one per agent."""
        return await self._written(lambda agent: self._prompts.first(agent, task.item))

    async def following(self, task: Task, prompts: Sequence[str | Chat]) -> tuple[AgentPrompt, ...]:
        """The prompts of a later turn, from those that the transition wrote."""
        return await self._written(
            lambda agent: self._prompts.later(agent, task.item, prompts[agent])
        )

    async def _written(self, write: Callable[[int], str]) -> tuple[AgentPrompt, ...]:
        agents = range(len(self._tokenizers))
        texts: list[str] = await self._on_main_thread(
            lambda: [write(agent) for agent in agents], "formatters"
        )
        return tuple(
            AgentPrompt(text, tuple(encode_prompt(tokenizer, text)))
            for text, tokenizer in zip(texts, self._tokenizers, strict=True)
        )
