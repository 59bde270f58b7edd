"""A user's reward function as a function of the project's own types."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from antiphon.clients.batches import even
from antiphon.clients.items import encode_item
from antiphon.clients.types import FieldError, JointAction, Score, Task
from antiphon.services.common.errors import UserFunctionError
from antiphon.services.common.function_arguments import Arguments, described
from antiphon.services.common.user_function import RecordCall, UserFunction, plain_prompt

REWARD_NAMES = (
    "prompts",
    "batch_items",
    "batch_item",
    "num_agents",
    "joint_action_ids",
    "turns",
    "phases",
    "attempts",
)

_OUTCOME_KEYS = frozenset({"value", "missing_reason", "components", "info"})


class RewardFunction(UserFunction):
    """A reward function: the agents' completions in, one number per joint action out.

    ``fn(a, b)`` gets agent 0's completions and agent 1's, each a list with one entry per joint
    action, and returns a sequence as long. An entry is a number; None for no reward; or a dict
    with "value" or "missing_reason" and, where wanted, "components" and "info". Parameters named
    `prompts`, `batch_items`, `num_agents`, … (`REWARD_NAMES`) are filled by name.

    Args:
        fn: The user's function.
        num_agents: How many agents there are; None for as many as each joint action has.
        batch_size: Most joint actions in one call of `fn`; all of them are of one node.
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
        if batch_size > 1 and self._arguments.names("batch_item"):
            raise UserFunctionError(
                self.name,
                f"takes batch_item, which needs batches of 1, not of {batch_size}; take "
                "batch_items, a list",
            )
        if num_agents is not None:
            self._arguments.check_agents(num_agents)

    def batches(self, joint_actions: Sequence[JointAction]) -> Iterator[list[JointAction]]:
        """Yields the joint actions of one call of the function after the other, in order.

        A call holds joint actions of one node (of one task after one history) only, in batches as
        equal as can be: so what is in it does not depend on what was asked at the same time.
        """
        for _, siblings in itertools.groupby(joint_actions, key=_node):
            node = list(siblings)
            size = even(len(node), self.batch_size)
            yield from (node[start : start + size] for start in range(0, len(node), size))

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
        items = [copy.deepcopy(dict(tasks[action.task_id].item)) for action in batch]
        values = {
            "prompts": [plain_prompt(action.actions[0].prompt) for action in batch],
            "batch_items": items,
            "batch_item": items[0],
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
        value = self._number(entry, key)
        if not math.isfinite(value):
            return None, f"{self.name} returned a value that is not finite: {value}"
        return value, None

    def _number(self, entry: Any, key: str) -> float:
        # Text has no __float__, so "0.5" is refused; numpy's and torch's numbers have one.
        if hasattr(entry, "__float__") or hasattr(entry, "__index__"):
            try:
                return float(entry)
            except OverflowError:
                return math.inf
            except (TypeError, ValueError, RuntimeError):
                pass  # an array or tensor with several elements
        raise self._error(f"returned {described(entry)} for one joint action, wanted a number", key)


def _node(action: JointAction) -> tuple[Any, ...]:
    return action.task_id, action.turn, action.history, len(action.actions)


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
