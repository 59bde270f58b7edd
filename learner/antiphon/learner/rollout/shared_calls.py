"""Nodes that ask for scores at the same time share a call."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.clients.types import JointAction, Score, Task

CallForNodes = Callable[
    [Sequence[Task], Sequence[JointAction], int], Coroutine[Any, Any, list[Score]]
]
"""Scores of the joint actions of so many nodes, in their order; each task is given once."""


@dataclass(frozen=True)
class _Node:
    task: Task
    joint_actions: Sequence[JointAction]
    scores: asyncio.Future[list[Score]]


class SharedCalls:
    """One call at a time; the nodes that ask while one is under way have the next one together.

    A call that fails does so for every node that it was made for.

    Args:
        call: Makes a call.
    """

    def __init__(self, call: CallForNodes) -> None:
        self._call = call
        self._waiting: list[_Node] = []
        self._called_for: list[_Node] = []
        self._under_way: asyncio.Task[list[Score]] | None = None

    async def score(self, task: Task, joint_actions: Sequence[JointAction]) -> list[Score]:
        """The scores of a node's joint actions, in the order asked."""
        loop = asyncio.get_running_loop()
        node = _Node(task, joint_actions, loop.create_future())
        self._waiting.append(node)
        loop.call_soon(self._begin)  # not at once: nodes that are complete together come first
        try:
            return await node.scores
        finally:
            if self._under_way and all(one.scores.done() for one in self._called_for):
                self._under_way.cancel()  # nobody waits for it any more

    def _begin(self) -> None:
        if self._under_way is not None:
            return
        tasks: dict[str, Task] = {}
        waiting = [node for node in self._waiting if not node.scores.done()]
        nodes = [n for n in waiting if tasks.setdefault(n.task.id, n.task) == n.task]
        self._waiting = [n for n in waiting if tasks[n.task.id] != n.task]
        if nodes:
            joint_actions = [action for node in nodes for action in node.joint_actions]
            self._called_for = nodes
            self._under_way = asyncio.create_task(
                self._call(list(tasks.values()), joint_actions, len(nodes)),
                name="shared Score call",
            )
            self._under_way.add_done_callback(self._end)

    def _end(self, call: asyncio.Task[list[Score]]) -> None:
        nodes, self._called_for, self._under_way = self._called_for, [], None
        error = None if call.cancelled() else call.exception()
        given = iter([] if call.cancelled() or error else call.result())
        for node in nodes:
            scores = list(itertools.islice(given, len(node.joint_actions)))
            if node.scores.done():
                continue
            if call.cancelled():
                node.scores.cancel()
            elif error is not None:
                node.scores.set_exception(error)
            else:
                node.scores.set_result(scores)
        self._begin()
