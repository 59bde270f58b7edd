"""Next prompts over a real connection: by id, one per agent."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from tests.integration.clients.judges import TASKS, Guide, joint_action, prompts
from tests.integration.clients.servers import QUICK, abort, serving, within

from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.transition import TransitionClient
from antiphon.clients.types import (
    BranchEnd,
    ChatMessage,
    NextPrompts,
    Score,
    ScoredJointAction,
    TransitionResult,
)

SCORED = [
    ScoredJointAction(joint_action(number), Score(f"j{number}", number / 2, info={"n": number}))
    for number in range(4)
]
EXPECTED = [
    TransitionResult(f"j{number}", NextPrompts((f"j{number} again",) * 2)) for number in range(4)
]


async def transition(
    guide: Guide, address: str = "127.0.0.1:0", scored: list[ScoredJointAction] = SCORED
) -> list[TransitionResult]:
    async with (
        serving(guide.register, address) as target,
        TransitionClient(target, retry=QUICK) as client,
    ):
        result: list[TransitionResult] = await within(
            client.transition("r", TASKS, scored, num_agents=2, timeout=20), 60
        )
        return result


async def test_results_come_in_the_order_asked_whatever_the_answer_s_order(address: str) -> None:
    """S9: applied by id, not by position."""
    guide = Guide()
    assert await transition(guide, address) == EXPECTED
    assert guide.asked == [SCORED]


async def test_ends_and_chats_arrive(address: str) -> None:
    answer = [
        TransitionResult("j0", BranchEnd("solved")),
        TransitionResult("j1", NextPrompts(("text", (ChatMessage("user", "again"),)))),
    ]

    async def script(scored: list[ScoredJointAction], context: Any) -> list[TransitionResult]:
        return answer

    assert await transition(Guide(script), address, SCORED[:2]) == answer


async def test_a_transient_failure_is_asked_again_with_the_attempt_counted(address: str) -> None:
    """S8: stable ids, attempt counted up."""

    async def away(scored: list[ScoredJointAction], context: Any) -> list[TransitionResult]:
        await abort(context, grpc.StatusCode.UNAVAILABLE)
        return []

    guide = Guide(away, prompts)
    assert await transition(guide, address) == EXPECTED
    assert [entry.joint_action.attempt for asked in guide.asked for entry in asked] == [1] * 4 + [
        2
    ] * 4


async def test_a_permanent_failure_is_told_at_once() -> None:
    """S8: a failed transition ends the run, with its own error."""

    async def wrong(scored: list[ScoredJointAction], context: Any) -> list[TransitionResult]:
        await abort(context, grpc.StatusCode.INTERNAL, "root cause")
        return []

    guide = Guide(wrong)
    with pytest.raises(CallError, match="root cause"):
        await transition(guide)
    assert len(guide.asked) == 1


@pytest.mark.parametrize(
    ("result", "named"),
    [
        (TransitionResult("j0", NextPrompts(("only one",))), "1 prompts for joint action 'j0'"),
        (TransitionResult("j0", NextPrompts(("a", "b", "c"))), "3 prompts"),
        (TransitionResult("j0", NextPrompts(("a", ""))), "agent 1"),
        (TransitionResult("j9", BranchEnd("")), "no answer for 'j0'.*unknown 'j9'"),
    ],
)
async def test_an_answer_that_does_not_fit_is_named(
    result: TransitionResult, named: str, address: str
) -> None:
    """S9, U5: ids, and the number and emptiness of prompts."""

    async def script(scored: list[ScoredJointAction], context: Any) -> list[TransitionResult]:
        return [result]

    with pytest.raises(ContractError, match=named):
        await transition(Guide(script), address, SCORED[:1])


async def test_large_joint_actions_are_spread_over_calls_that_any_server_takes() -> None:
    """S1: a server with gRPC's default limit of 4 MiB."""
    scored = [
        ScoredJointAction(joint_action(number, completion="x" * 1_500_000), entry.score)
        for number, entry in enumerate(SCORED)
    ]
    guide = Guide()
    assert await transition(guide, scored=scored) == EXPECTED
    assert sorted(map(len, guide.asked)) == [2, 2]


async def test_nothing_to_continue_makes_no_call() -> None:
    guide = Guide()
    assert await transition(guide, scored=[]) == []
    assert guide.asked == []
