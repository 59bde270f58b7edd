"""The settings of prompts and their order, which `MAGRPOConfig` has beside CoMLRL's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from antiphon.clients.types import FieldError
from antiphon.learner.config.optimization import OrNone
from antiphon.learner.config.per_agent import PerAgent, of_agent

Conversation = Literal["replace", "append"]
SystemPrompt = Annotated[Annotated[str, Field(min_length=1)] | None, OrNone]


class PromptConfig(BaseModel):
    """How prompts become token ids, and in which order the dataset's rows come."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    apply_chat_template: PerAgent[bool] = False
    """A text prompt becomes one user message under the tokenizer's chat template; false takes it as
    it is. Prompts that are chat messages are templated in either case. One value or a list."""
    system_prompt: PerAgent[SystemPrompt] = None
    """A system message in front of a chat that does not begin with one; text prompts need
    `apply_chat_template` for it. One for all agents or a list with one per agent."""
    conversation: Conversation = "replace"
    """What a later turn's prompt does: ``"replace"`` stands alone, as in CoMLRL; ``"append"`` goes
    on token for token after the prompt and the answer of the turn before."""
    shuffle: bool = False
    """The training dataset's rows come in an order drawn from `seed` and the epoch; false keeps the
    dataset's own."""
    shuffle_buffer_size: int = Field(default=1000, ge=1)
    """Rows that are held to draw the next one from, where a shuffled dataset does not know its
    length."""


def check_prompt_settings(config: PromptConfig, num_agents: int) -> None:
    """Refuse a list of another length than there are agents.

    Raises:
        FieldError: Names the setting.
    """
    for name in ("apply_chat_template", "system_prompt"):
        value = getattr(config, name)
        if isinstance(value, tuple) and len(value) != num_agents:
            raise FieldError(name, f"{len(value)} of them", f"one, or {num_agents}, one per agent")


def system_prompt_of(config: PromptConfig, agent: int) -> str | None:
    """An agent's system prompt, None where it has none."""
    return of_agent(config.system_prompt, agent)


def applies_chat_template(config: PromptConfig, agent: int) -> bool:
    """Whether an agent's text prompts become user messages."""
    return of_agent(config.apply_chat_template, agent)
