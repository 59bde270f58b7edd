"""What a user's reward and transition functions have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.clients.types import Chat, FieldError, JointAction
from antiphon.services.common.errors import UserFunctionError
from antiphon.services.common.function_arguments import Arguments, call_once

RecordCall = Callable[[str, tuple[str, ...]], None]


class UserFunction:
    """What reward and transition functions share: arguments, the record of calls, the one call."""

    def __init__(
        self,
        fn: Callable[..., Any],
        arguments: Arguments,
        num_agents: int | None,
        record_call: RecordCall | None,
    ) -> None:
        self._fn = fn
        self._arguments = arguments
        self._num_agents = num_agents
        self._record_call = record_call

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self._arguments.name

    def _agents_of(self, joint_action: JointAction) -> int:
        count = len(joint_action.actions)
        if self._num_agents not in (None, count):
            raise FieldError(
                f"joint_actions[{joint_action.id}].actions",
                f"{count} actions",
                f"{self._num_agents}, one per agent that {self.name} was set up for",
            )
        return count

    def _call(
        self, values: Mapping[str, Any], completions: Sequence[list[str]], ids: tuple[str, ...]
    ) -> Any:
        bound = self._arguments.bind(values, completions)
        if self._record_call is not None:
            self._record_call(self.name, ids)
        return call_once(self._fn, self.name, bound, ids)

    def _error(self, problem: str, key: str) -> UserFunctionError:
        return UserFunctionError(self.name, problem, joint_action_ids=(key,))


def plain_prompt(prompt: str | Chat) -> str | list[dict[str, str]]:
    """A prompt as user code writes it."""
    if isinstance(prompt, str):
        return prompt
    return [{"role": message.role, "content": message.content} for message in prompt]
