"""The joint actions that a service is checked with."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from typing import Any

from antiphon.clients.types import AgentAction, JointAction, Phase, Task

UNUSUAL_TEXT = "naïve 東京 🏳️‍🌈 עברית e\u0301 \u2028 \\ \" ' {} \t\n\x00 end"
"""Text of more than one byte per character, in both directions, with controls."""


class Cases:
    """Makes joint actions with ids that no service has seen before.

    Args:
        num_agents: How many agents each has.
        num_turns: The highest turn.
        item: The item of the task that they answer.
    """

    def __init__(self, num_agents: int, num_turns: int, item: Mapping[str, Any]) -> None:
        self.num_agents = num_agents
        self.num_turns = num_turns
        self.task = Task("task-0", item)
        self._prefix = f"check-{uuid.uuid4().hex[:8]}"
        self._numbers = itertools.count()

    def action(
        self, *, completion: str | None = None, turn: int = 1, phase: Phase = Phase.TRAIN
    ) -> JointAction:
        """A new joint action; completions differ in length by agent unless one is given."""
        number = next(self._numbers)
        return JointAction(
            id=f"{self._prefix}-{number}",
            task_id=self.task.id,
            turn=turn,
            phase=phase,
            attempt=1,
            actions=self._actions(number, completion, turn),
            history=tuple(self._actions(number, None, past) for past in range(1, turn)),
        )

    def batch(self, size: int) -> list[JointAction]:
        """New joint actions whose completions differ in length."""
        return [self.action() for _ in range(size)]

    def _actions(self, number: int, completion: str | None, turn: int) -> tuple[AgentAction, ...]:
        return tuple(
            AgentAction(
                prompt=f"Turn {turn}: describe a city in the clouds, agent {agent}.",
                completion=(
                    "It floats. " * (1 + agent * (1 + number % 5) + number % 3)
                    if completion is None
                    else completion
                ),
            )
            for agent in range(self.num_agents)
        )
