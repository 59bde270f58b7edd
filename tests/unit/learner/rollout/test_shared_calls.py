"""Nodes that ask for scores at the same time share a call, and each gets what is its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from antiphon.clients.types import AgentAction, JointAction, Phase, Score, Task
from antiphon.learner.rollout.shared_calls import SharedCalls

TASKS = [Task(f"row-{row}", {"prompt": "x"}) for row in range(3)]


def actions(task: Task, *ids: str) -> list[JointAction]:
    return [JointAction(key, task.id, 1, Phase.TRAIN, 1, (AgentAction("x", "y"),)) for key in ids]


class Service:
    """Answers a call once it is let, with each joint action's number as its value."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], list[str], int]] = []
        self.cancelled = 0
        self.failure: Exception | None = None
        self._called = asyncio.Condition()
        self._answers = asyncio.Semaphore(0)

    async def __call__(
        self, tasks: Sequence[Task], joint_actions: Sequence[JointAction], nodes: int
    ) -> list[Score]:
        async with self._called:
            self.asked.append(([t.id for t in tasks], [a.id for a in joint_actions], nodes))
            self._called.notify_all()
        try:
            await self._answers.acquire()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure is not None:
            raise self.failure
        return [Score(action.id, float(action.id)) for action in joint_actions]

    async def called(self, times: int) -> None:
        async with self._called:
            await self._called.wait_for(lambda: len(self.asked) == times)

    def answer(self) -> None:
        self._answers.release()


def values(scores: Sequence[Score]) -> list[float | None]:
    return [score.value for score in scores]


async def test_nodes_that_ask_together_share_a_call_and_later_ones_the_next() -> None:
    service = Service()
    calls = SharedCalls(service)
    first = [
        asyncio.create_task(calls.score(TASKS[0], actions(TASKS[0], "1", "2"))),
        asyncio.create_task(calls.score(TASKS[1], actions(TASKS[1], "3"))),
        asyncio.create_task(calls.score(TASKS[0], actions(TASKS[0], "4"))),
    ]
    await service.called(1)
    later = [
        asyncio.create_task(calls.score(TASKS[2], actions(TASKS[2], "5"))),
        asyncio.create_task(calls.score(TASKS[1], actions(TASKS[1], "6", "7"))),
    ]
    service.answer()
    assert [values(await task) for task in first] == [[1, 2], [3], [4]]
    await service.called(2)
    service.answer()
    assert [values(await task) for task in later] == [[5], [6, 7]]
    assert service.asked == [
        (["row-0", "row-1"], ["1", "2", "3", "4"], 3),
        (["row-2", "row-1"], ["5", "6", "7"], 2),
    ]


async def test_a_failure_is_everybodys_and_the_next_call_is_made() -> None:
    service = Service()
    calls = SharedCalls(service)
    asked = [
        asyncio.create_task(calls.score(TASKS[row], actions(TASKS[row], str(row))))
        for row in range(2)
    ]
    await service.called(1)
    third = asyncio.create_task(calls.score(TASKS[2], actions(TASKS[2], "2")))
    service.failure = ValueError("no score")
    service.answer()
    for task in asked:
        with pytest.raises(ValueError, match="no score"):
            await task
    service.failure = None
    await service.called(2)
    service.answer()
    assert values(await third) == [2]


async def test_a_call_goes_on_while_one_of_its_nodes_waits() -> None:
    service = Service()
    calls = SharedCalls(service)
    gone, waits = (
        asyncio.create_task(calls.score(TASKS[row], actions(TASKS[row], str(row))))
        for row in range(2)
    )
    await service.called(1)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    service.answer()
    assert values(await waits) == [1]
    assert service.cancelled == 0


async def test_a_call_that_nobody_waits_for_is_cancelled_and_those_that_wait_have_theirs() -> None:
    service = Service()
    calls = SharedCalls(service)
    gone = asyncio.create_task(calls.score(TASKS[0], actions(TASKS[0], "0")))
    await service.called(1)
    waits = asyncio.create_task(calls.score(TASKS[1], actions(TASKS[1], "1")))
    await asyncio.sleep(0)
    gone.cancel()
    await service.called(2)
    service.answer()
    assert values(await waits) == [1]
    assert service.cancelled == 1
    assert service.asked[1] == (["row-1"], ["1"], 1)


async def test_a_call_that_is_cancelled_from_outside_is_cancelled_for_its_nodes() -> None:
    async def closed(*_: object) -> list[Score]:
        raise asyncio.CancelledError  # as calls on a channel that is closed

    calls = SharedCalls(closed)
    with pytest.raises(asyncio.CancelledError):
        await calls.score(TASKS[0], actions(TASKS[0], "0"))


async def test_two_forms_of_a_task_are_never_in_one_call() -> None:
    service = Service()
    calls = SharedCalls(service)
    other = Task(TASKS[0].id, {"prompt": "another"})
    asked = [
        asyncio.create_task(calls.score(task, actions(task, key)))
        for task, key in ((TASKS[0], "0"), (other, "1"))
    ]
    service.answer()
    service.answer()
    assert [values(await task) for task in asked] == [[0], [1]]
    assert [ids for _, ids, _ in service.asked] == [["0"], ["1"]]
