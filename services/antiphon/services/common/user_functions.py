"""A user's reward and transition functions as functions of the project's own types.

What a function gets are copies, so that it may change them. It is called once per joint action, or
per batch of them; what it raises or answers wrongly is a `UserFunctionError` that names it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from antiphon.clients.items import encode_item
from antiphon.clients.types import (
    AgentAction,
    BranchEnd,
    Chat,
    ChatMessage,
    FieldError,
    JointAction,
    NextPrompts,
    Score,
    ScoredJointAction,
    Task,
    TransitionResult,
)
from antiphon.services.common.errors import UserFunctionError
from antiphon.services.common.function_arguments import Arguments, call_once, described
from antiphon.services.common.load_function import load_function

__all__ = ["END", "End", "RewardFunction", "TransitionFunction", "load_function"]

RecordCall = Callable[[str, tuple[str, ...]], None]

REWARD_NAMES = (
    "prompts",
    "batch_items",
    "num_agents",
    "joint_action_ids",
    "turns",
    "phases",
    "attempts",
)
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

_OUTCOME_KEYS = frozenset({"value", "missing_reason", "components", "info"})


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


class _UserFunction:
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


class RewardFunction(_UserFunction):
    """A reward function: the agents' completions in, one number per joint action out.

    ``fn(a, b)`` gets agent 0's completions and agent 1's, each a list with one entry per joint
    action, and returns a sequence as long. An entry is a number; None for no reward; or a dict
    with "value" or "missing_reason" and, where wanted, "components" and "info". Parameters named
    `prompts`, `batch_items`, `num_agents`, … (`REWARD_NAMES`) are filled by name.

    Args:
        fn: The user's function.
        num_agents: How many agents there are; None for as many as each joint action has.
        batch_size: Most joint actions in one call of `fn`.
        record_call: Told the function's name and the joint actions' ids before each call.

    Raises:
        UserFunctionError: The function has parameters that nothing fills, or takes the completions
            of another number of agents.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        num_agents: int | None = None,
        batch_size: int = 1,
        *,
        record_call: RecordCall | None = None,
    ) -> None:
        if batch_size < 1:
            raise FieldError("reward_batch_size", batch_size, "at least 1")
        super().__init__(fn, Arguments(fn, REWARD_NAMES, agents=True), num_agents, record_call)
        self.batch_size = batch_size
        if num_agents is not None:
            self._arguments.check_agents(num_agents)

    def batches(self, joint_actions: Sequence[JointAction]) -> Iterator[list[JointAction]]:
        """Yields the joint actions of one call of the function after the other, in order.

        Joint actions with different numbers of agents are never in one call.
        """
        batch: list[JointAction] = []
        for action in joint_actions:
            full = len(batch) == self.batch_size
            if batch and (full or len(action.actions) != len(batch[0].actions)):
                yield batch
                batch = []
            batch.append(action)
        if batch:
            yield batch

    def __call__(
        self, tasks: Mapping[str, Task], joint_actions: Sequence[JointAction]
    ) -> list[Score]:
        """Scores the joint actions, in their order.

        Args:
            tasks: By id.
            joint_actions: Name the tasks.

        Raises:
            UserFunctionError: The function raised or returned what it must not.
        """
        scores: list[Score] = []
        for batch in self.batches(joint_actions):
            scores += self._score(tasks, batch)
        return scores

    def _score(self, tasks: Mapping[str, Task], batch: Sequence[JointAction]) -> list[Score]:
        num_agents = self._agents_of(batch[0])
        ids = tuple(action.id for action in batch)
        values = {
            "prompts": [_plain_prompt(action.actions[0].prompt) for action in batch],
            "batch_items": [copy.deepcopy(dict(tasks[a.task_id].item)) for a in batch],
            "num_agents": num_agents,
            "joint_action_ids": list(ids),
            "turns": [action.turn for action in batch],
            "phases": [action.phase.value for action in batch],
            "attempts": [action.attempt for action in batch],
        }
        completions = [[a.actions[agent].completion for a in batch] for agent in range(num_agents)]
        result = self._call(values, completions, ids)
        entries = _entries(result)
        if entries is None or len(entries) != len(batch):
            got = described(result) if entries is None else f"{len(entries)} values"
            raise UserFunctionError(
                self.name,
                f"returned {got}, wanted a sequence of {len(batch)}, one value per joint action",
                joint_action_ids=ids,
            )
        return [self._outcome(entry, key) for entry, key in zip(entries, ids, strict=True)]

    def _outcome(self, entry: Any, key: str) -> Score:
        if not isinstance(entry, Mapping):
            value, reason = self._value(entry, key)
            return Score(key, value, reason)
        unknown = sorted(set(map(str, entry)) - _OUTCOME_KEYS)
        if unknown or not {"value", "missing_reason"} & set(entry):
            got = f"the key {unknown[0]!r}" if unknown else f"the keys {sorted(map(str, entry))}"
            raise self._error(
                f'returned a dict with {got}, wanted "value" or "missing_reason", and "components" '
                'and "info" where there are any',
                key,
            )
        value, reason = self._value(entry.get("value"), key)
        if value is None or entry.get("missing_reason"):
            value, reason = None, str(entry.get("missing_reason") or reason)
        components = entry.get("components") or {}
        info = entry.get("info")
        if not isinstance(components, Mapping):
            raise self._error(
                f'returned "components" {described(components)}, wanted names with numbers', key
            )
        parts = {str(name): self._number(part, key) for name, part in components.items()}
        try:
            if info is not None:
                encode_item(info, "info")
        except FieldError as error:
            raise self._error(f"returned {error}", key) from error
        return Score(key, value, reason, parts, copy.deepcopy(info))

    def _value(self, entry: Any, key: str) -> tuple[float | None, str | None]:
        if entry is None:
            return None, f"{self.name} returned None"
        try:
            value = self._number(entry, key)
        except OverflowError:
            return None, f"{self.name} returned a number too large for a float"
        if not math.isfinite(value):
            return None, f"{self.name} returned a value that is not finite: {value}"
        return value, None

    def _number(self, entry: Any, key: str) -> float:
        # Text has no __float__, so "0.5" is refused; numpy's and torch's numbers have one.
        if hasattr(entry, "__float__") or hasattr(entry, "__index__"):
            try:
                return float(entry)
            except (TypeError, ValueError, RuntimeError):
                pass  # an array or tensor with several elements
        raise self._error(f"returned {described(entry)} for one joint action, wanted a number", key)

    def _error(self, problem: str, key: str) -> UserFunctionError:
        return UserFunctionError(self.name, problem, joint_action_ids=(key,))


class TransitionFunction(_UserFunction):
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
                [_plain_prompt(turn[agent].prompt) for turn in turns] for agent in range(num_agents)
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

    def _error(self, problem: str, key: str) -> UserFunctionError:
        return UserFunctionError(self.name, problem, joint_action_ids=(key,))


def _plain_prompt(prompt: str | Chat) -> str | list[dict[str, str]]:
    """A prompt as user code writes it."""
    if isinstance(prompt, str):
        return prompt
    return [{"role": message.role, "content": message.content} for message in prompt]


def _entries(result: Any) -> list[Any] | None:
    """A sequence of whatever type as a list; None where it is none."""
    if isinstance(result, Sequence) and not isinstance(result, str | bytes | bytearray):
        return list(result)
    # numpy arrays, torch tensors, pandas columns: known by what they can do, not imported.
    to_list = getattr(result, "tolist", None)
    if callable(to_list):
        entries = to_list()
        return entries if isinstance(entries, list) else None
    return None
