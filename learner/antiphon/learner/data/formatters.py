"""Formatters: what turns a dataset item into an agent's prompt, as in CoMLRL.

A formatter is `f(item)` or `f(item, external_prompts=...)` and returns a text or chat messages. On
later turns the item that it sees holds the transition's prompt as its ``prompt``, and a formatter
that takes `external_prompts` gets it there too. Without a formatter the prompt is the item's
``prompt``, later the transition's.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.clients.types import Chat, FieldError
from antiphon.learner.data.chats import WrittenPrompt, read_prompt
from antiphon.services.common.function_arguments import function_name
from antiphon.services.common.user_function import plain_prompt

Formatter = Callable[..., WrittenPrompt]
PROMPT_COLUMN = "prompt"


class Prompts:
    """Writes every agent's prompts.

    Args:
        formatters: None, one for all agents, or one per agent (None among them for the default).
        num_agents: Number of agents, N.
        passthrough: Later turns use the transition's prompts as they are.

    Raises:
        FieldError: Another number of formatters, or one that cannot be called with an item.
    """

    def __init__(
        self,
        formatters: Formatter | Sequence[Formatter | None] | None,
        num_agents: int,
        *,
        passthrough: bool = False,
    ) -> None:
        if formatters is None or callable(formatters):
            per_agent: Sequence[Formatter | None] = [formatters] * num_agents
        elif isinstance(formatters, Sequence) and not isinstance(formatters, (str, bytes)):
            if len(formatters) != num_agents:
                raise FieldError(
                    "formatters",
                    f"{len(formatters)} of them",
                    f"one, or {num_agents}, one per agent",
                )
            per_agent = formatters
        else:
            raise FieldError(
                "formatters", repr(formatters), "None, a function, or a list of functions"
            )
        self._agents = [_AgentFormatter(agent, f) for agent, f in enumerate(per_agent)]
        self._passthrough = passthrough

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """Columns that the dataset must have: ``prompt`` where an agent has no formatter."""
        return (PROMPT_COLUMN,) if any(a.function is None for a in self._agents) else ()

    @property
    def names(self) -> tuple[str | None, ...]:
        """What each agent's formatter is called, None where it has none."""
        return tuple(
            None if a.function is None else function_name(a.function) for a in self._agents
        )

    def first(self, agent: int, item: Mapping[str, Any]) -> str | Chat:
        """Write an agent's prompt of the first turn. Runs user code.

        Raises:
            FieldError: The result is neither text nor chat messages, or is empty.
        """
        return self._agents[agent].write(item, None)

    def later(self, agent: int, item: Mapping[str, Any], transition_prompt: object) -> str | Chat:
        """Write an agent's prompt of a later turn from the transition's. Runs user code.

        Raises:
            FieldError: The transition's prompt or the result is neither text nor chat messages, or
                is empty.
        """
        prompt = read_prompt(f"the transition's prompt of agent {agent}", transition_prompt)
        return prompt if self._passthrough else self._agents[agent].write(item, prompt)


class _AgentFormatter:
    def __init__(self, agent: int, function: Formatter | None) -> None:
        if function is not None and not callable(function):
            raise FieldError(f"formatters[{agent}]", repr(function), "a function or None")
        self.function = function
        self._field = f"formatters[{agent}]"
        self._external: inspect.Parameter | None = None
        if function is None:
            self._field = f"item[{PROMPT_COLUMN!r}]"
            return
        name = getattr(function, "__qualname__", type(function).__name__)
        self._field = f"formatters[{agent}] ({name})"
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # some builtins have none; they are simply called
            return
        self._external = signature.parameters.get("external_prompts")
        try:
            signature.bind({}, **({} if self._external is None else {"external_prompts": None}))
        except TypeError as error:
            raise FieldError(
                self._field,
                f"{name}{signature} ({error})",
                "f(item) or f(item, external_prompts=None)",
            ) from None

    def write(self, item: Mapping[str, Any], external: str | Chat | None) -> str | Chat:
        if self.function is None:
            if external is None and PROMPT_COLUMN not in item:
                raise FieldError(self._field, f"the columns {', '.join(item)}", "a prompt")
            return read_prompt(self._field, item[PROMPT_COLUMN] if external is None else external)
        # The user's own row must stay as it is, whatever the formatter does to what it gets.
        seen = copy.deepcopy(dict(item))
        if external is not None:
            seen[PROMPT_COLUMN] = plain_prompt(external)
        takes_it = self._external is not None and (
            external is not None or self._external.default is inspect.Parameter.empty
        )
        written = None if external is None else plain_prompt(external)
        arguments = {"external_prompts": written} if takes_it else {}
        return read_prompt(self._field, self.function(seen, **arguments))
