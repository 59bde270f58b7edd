"""A user's transition function as a function of the project's own types."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from antiphon.clients.types import (
    AgentAction,
    BranchEnd,
    Chat,
    ChatMessage,
    NextPrompts,
    ScoredJointAction,
    Task,
    TransitionResult,
)
from antiphon.services.common.function_arguments import Arguments, described
from antiphon.services.common.user_function import RecordCall, UserFunction, plain_prompt

TRANSITION_NAMES = (
    "prompt",
    "agent_completions",
    "num_agents",
    "prompt_history_per_agent",
    "response_history_per_agent",
    "batch_item",
    "score",
    "info",
    "turn",
)


class End:
    """What a transition function returns to end the branch: `END`, or `END("why")`."""

    def __init__(self, reason: str = "the transition function ended it") -> None:
        self.reason = reason

    def __call__(self, reason: str) -> End:
        """An end with a reason of its own."""
        return End(reason)

    def __repr__(self) -> str:
        return f"END({self.reason!r})"


END = End()


class TransitionFunction(UserFunction):
    """A transition function: what the agents answered in, the next prompt of each agent out.

    It takes any of `TRANSITION_NAMES`, all by name, and returns a list or tuple with one prompt
    per agent, each a text or a list of chat messages (``{"role": …, "content": …}``), or `END`.

    Args:
        fn: The user's function.
        num_agents: How many agents there are; None for as many as each joint action has.
        record_call: Told the function's name and the joint action's id before each call.

    Raises:
        UserFunctionError: The function has a parameter that nothing fills.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        num_agents: int | None = None,
        *,
        record_call: RecordCall | None = None,
    ) -> None:
        super().__init__(fn, Arguments(fn, TRANSITION_NAMES, agents=False), num_agents, record_call)

    def __call__(self, task: Task, scored: ScoredJointAction) -> TransitionResult:
        """What follows one joint action.

        Raises:
            UserFunctionError: The function raised or returned what it must not.
        """
        action = scored.joint_action
        num_agents = self._agents_of(action)
        turns: tuple[tuple[AgentAction, ...], ...] = (*action.history, action.actions)
        item = copy.deepcopy(dict(task.item))
        values = {
            "prompt": item.get("prompt", ""),
            "agent_completions": [a.completion for a in action.actions],
            "num_agents": num_agents,
            "prompt_history_per_agent": [
                [plain_prompt(turn[agent].prompt) for turn in turns] for agent in range(num_agents)
            ],
            "response_history_per_agent": [
                [turn[agent].completion for turn in turns] for agent in range(num_agents)
            ],
            "batch_item": item,
            "score": scored.score.value,
            "info": copy.deepcopy(scored.score.info),
            "turn": action.turn,
        }
        result = self._call(values, (), (action.id,))
        if isinstance(result, End):
            return TransitionResult(action.id, BranchEnd(result.reason))
        if not isinstance(result, list | tuple):
            raise self._error(
                f"returned {described(result)}, wanted a list of {num_agents} prompts, one per "
                "agent, or END to end the branch",
                action.id,
            )
        if len(result) != num_agents:
            raise self._error(
                f"returned {len(result)} prompts, wanted {num_agents}, one per agent", action.id
            )
        prompts = tuple(self._prompt(p, agent, action.id) for agent, p in enumerate(result))
        return TransitionResult(action.id, NextPrompts(prompts))

    def _prompt(self, prompt: Any, agent: int, key: str) -> str | Chat:
        messages: list[ChatMessage] = []
        texts: list[str] = []
        if isinstance(prompt, str):
            texts = [prompt]
        elif isinstance(prompt, list | tuple):
            messages = [self._message(entry, agent, key) for entry in prompt]
            texts = [part for m in messages for part in (m.role, m.content)]
        if not texts or (isinstance(prompt, str) and not prompt):
            got = "an empty prompt" if prompt in ("", [], ()) else described(prompt)
            raise self._error(
                f"returned {got} for agent {agent}, wanted a text or chat messages that are not "
                "empty",
                key,
            )
        try:
            "".join(texts).encode()
        except UnicodeEncodeError as error:
            raise self._error(
                f"returned a prompt for agent {agent} that is no valid Unicode: {error}", key
            ) from error
        return prompt if isinstance(prompt, str) else tuple(messages)

    def _message(self, entry: Any, agent: int, key: str) -> ChatMessage:
        if isinstance(entry, ChatMessage):
            return entry
        if (
            isinstance(entry, Mapping)
            and set(entry) == {"role", "content"}
            and all(isinstance(part, str) for part in entry.values())
        ):
            return ChatMessage(entry["role"], entry["content"])
        raise self._error(
            f"returned the chat message {described(entry)} for agent {agent}, wanted a dict with "
            'the texts "role" and "content"',
            key,
        )
