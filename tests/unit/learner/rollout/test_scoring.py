"""What reward services say becomes the rewards to train on."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from antiphon.clients.types import AgentAction, FieldError, JointAction, Phase, Score, Task
from antiphon.learner.rollout.scoring import RewardScorer

TASK = Task("row-0", {"prompt": "x"})
ACTIONS = [
    JointAction(f"j{index}", "row-0", 1, Phase.TRAIN, 1, (AgentAction("x", "y"),))
    for index in range(3)
]


@dataclass
class Client:
    values: list[float | None]
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def score(
        self, run_id: str, tasks: Sequence[Task], joint_actions: Sequence[JointAction], **how: Any
    ) -> list[Score]:
        self.asked.append({"run_id": run_id, "tasks": list(tasks), **how})
        return [
            Score(action.id, value, None if value is not None else "why")
            for action, value in zip(joint_actions, self.values, strict=True)
        ]


async def inline(function: Callable[[], Any], what: str) -> Any:
    return function()


def scorer(
    client: Client,
    *,
    missing: bool = False,
    drop: bool = True,
    one_at_a_time: bool = False,
    processor: Any = None,
) -> RewardScorer:
    return RewardScorer(
        client,
        run_id="run",
        timeout=7,
        failures_are_missing=missing,
        drop_missing=drop,
        one_at_a_time=one_at_a_time,
        processor=processor,
        on_main_thread=inline,
    )


async def test_the_task_goes_along_once_with_run_and_deadline() -> None:
    client = Client([1.0, 2.0, 3.0])
    await scorer(client).score(TASK, ACTIONS)
    assert client.asked == [{"run_id": "run", "tasks": [TASK], "timeout": 7, "on_failure": "raise"}]


async def test_failures_count_as_missing_only_where_that_is_configured() -> None:
    client = Client([1.0, 2.0, 3.0])
    await scorer(client, missing=True).score(TASK, ACTIONS)
    assert client.asked[0]["on_failure"] == "missing"


async def test_nodes_share_calls_and_their_deadlines_add_up() -> None:
    client = Client([1.0, 2.0, 3.0])
    asking = scorer(client, one_at_a_time=True)
    both = await asyncio.gather(asking.score(TASK, ACTIONS[:1]), asking.score(TASK, ACTIONS[1:]))
    assert [[reward for _, reward in scored] for scored in both] == [[1.0], [2.0, 3.0]]
    assert client.asked == [
        {"run_id": "run", "tasks": [TASK], "timeout": 14, "on_failure": "raise"}
    ]


async def test_a_node_has_its_own_call_where_a_failed_one_makes_scores_missing() -> None:
    client = Client([1.0])
    asking = scorer(client, one_at_a_time=True, missing=True)
    await asyncio.gather(*(asking.score(TASK, [action]) for action in ACTIONS))
    assert [call["timeout"] for call in client.asked] == [7, 7, 7]


@pytest.mark.parametrize(
    ("processor", "got"),
    [
        (None, "none (why)"),
        (
            lambda value: math.nan if value == 1 else value,
            "none (the score is 1, for which the reward processor gave none)",
        ),
    ],
)
async def test_a_missing_reward_stops_the_run_where_none_may_be(processor: Any, got: str) -> None:
    asking = scorer(Client([1.0, None, 3.0]), drop=False, processor=processor)
    action = "j0" if processor else "j1"
    said = re.escape(f"reward of joint action {action} of turn 1: got {got}, wanted a finite")
    with pytest.raises(FieldError, match=f"{said}.*set on_missing_score to 'drop'"):
        await asking.score(TASK, ACTIONS)
    whole = await scorer(Client([1.0, 2.0, 3.0]), drop=False).score(TASK, ACTIONS)
    assert [reward for _, reward in whole] == [1.0, 2.0, 3.0]


async def test_a_missing_reward_of_a_shared_call_is_told_of_its_own_node() -> None:
    client = Client([1.0, None, 3.0])
    asking = scorer(client, drop=False, one_at_a_time=True)
    whole, lacking = await asyncio.gather(
        asking.score(TASK, ACTIONS[:1]), asking.score(TASK, ACTIONS[1:]), return_exceptions=True
    )
    assert len(client.asked) == 1
    assert isinstance(whole, list)
    assert [reward for _, reward in whole] == [1.0]
    assert isinstance(lacking, FieldError)
    assert lacking.field == "reward of joint action j1 of turn 1"


async def test_the_processor_sees_every_value_and_the_raw_score_stays() -> None:
    seen = []

    def halve(value: float) -> float:
        seen.append(value)
        return value / 2

    scored = await scorer(Client([1.0, None, 3.0]), processor=halve).score(TASK, ACTIONS)
    assert seen == [1.0, 3.0]
    assert [reward for _, reward in scored] == [0.5, None, 1.5]
    assert [score.value for score, _ in scored] == [1.0, None, 3.0]


@pytest.mark.parametrize("result", [None, math.nan, math.inf, 1e308])
async def test_a_processor_without_a_finite_answer_makes_the_reward_missing(
    result: float | None,
) -> None:
    """L6: the bad one counts as missing, the rest train."""
    scored = await scorer(
        Client([1.0, 2.0, 3.0]), processor=lambda value: result if value == 2 else value
    ).score(TASK, ACTIONS)
    assert [reward for _, reward in scored] == [1.0, None, 3.0]


async def test_a_processor_with_another_type_of_answer_is_named() -> None:
    def spoiled(value: float) -> str:
        return "high"

    with pytest.raises(TypeError, match=r"reward_processor .*spoiled: got str for the reward 1.0"):
        await scorer(Client([1.0, 2.0, 3.0]), processor=spoiled).score(TASK, ACTIONS)
