"""What agents are asked: formatted on the main thread, tokenised with each agent's tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from antiphon.clients.types import Chat, Task
from antiphon.learner.data.formatters import Prompts
from antiphon.learner.rollout.prompt_encoding import PromptEncoder
from antiphon.learner.rollout.scoring import OnMainThread
from antiphon.learner.rollout.tree import AgentPrompt, Node


class TokenizedPrompts:
    """Writes and tokenises every agent's prompts.

    Args:
        prompts: The formatters.
        encoders: One per agent, agent 0 first.
        on_main_thread: Runs the formatters, which are user code.
    """

    def __init__(
        self, prompts: Prompts, encoders: Sequence[PromptEncoder], on_main_thread: OnMainThread
    ) -> None:
        self._prompts = prompts
        self._encoders = encoders
        self._on_main_thread = on_main_thread

    async def first(self, task: Task) -> tuple[AgentPrompt, ...]:
        """The prompts of turn 1, one per agent."""
        written = await self._written(lambda agent: self._prompts.first(agent, task.item))
        return tuple(
            encoder.encode(content)
            for encoder, content in zip(self._encoders, written, strict=True)
        )

    async def following(
        self, node: Node, samples: Sequence[int], prompts: Sequence[str | Chat]
    ) -> tuple[AgentPrompt, ...]:
        """The prompts of a later turn, from those that the transition wrote after a joint action.

        Args:
            node: The turn before.
            samples: Each agent's completion in the joint action [N].
            prompts: The transition's, one per agent.
        """
        written = await self._written(
            lambda agent: self._prompts.later(agent, node.task.item, prompts[agent])
        )
        return tuple(
            followed(encoder, node, agent, samples[agent], written[agent])
            for agent, encoder in enumerate(self._encoders)
        )

    async def _written(self, write: Callable[[int], str | Chat]) -> list[str | Chat]:
        agents = range(len(self._encoders))
        written: list[str | Chat] = await self._on_main_thread(
            lambda: [write(agent) for agent in agents], "formatters"
        )
        return written


def followed(
    encoder: PromptEncoder, node: Node, agent: int, sample: int, content: str | Chat
) -> AgentPrompt:
    """An agent's next prompt: by itself, or appended to what it was asked and answered."""
    if not encoder.appends:
        return encoder.encode(content)
    return encoder.append(node.prompts[agent], node.completions[agent][sample], content)
