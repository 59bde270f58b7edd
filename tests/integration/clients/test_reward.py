"""Scores over a real connection: by id, in batches that the service takes, retried with sense."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.clients.judges import TASKS, Judge, joint_action, score_of, scores
from tests.integration.clients.servers import QUICK, abort, serving, within

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.reward import RewardClient
from antiphon.clients.types import FieldError, JointAction, RewardInfo, Score

ACTIONS = [joint_action(number, task=number % 2) for number in range(10)]
EXPECTED = [Score(f"j{number}", float(number)) for number in range(10)]


async def score(
    judge: Judge, address: str = "127.0.0.1:0", actions: list[JointAction] = ACTIONS, **options: Any
) -> list[Score]:
    retry = options.pop("retry", QUICK)
    timeout = options.pop("timeout", 20)
    async with (
        serving(judge.register, address) as target,
        RewardClient(target, retry=retry) as client,
    ):
        result: list[Score] = await within(
            client.score("r", TASKS, actions, timeout=timeout, **options), 60
        )
        return result


def aborts(code: grpc.StatusCode, message: str = "scripted") -> Any:
    async def script(actions: list[JointAction], context: Any) -> list[Score]:
        await abort(context, code, message)
        return []

    return script


async def test_scores_come_in_the_order_asked_whatever_the_answer_s_order(address: str) -> None:
    """S9: applied by id, not by position."""
    judge = Judge()
    assert await score(judge, address) == EXPECTED
    assert len(judge.asked) == 1
    assert judge.asked[0] == ACTIONS


async def test_nothing_to_score_makes_no_call() -> None:
    judge = Judge()
    assert await score(judge, actions=[]) == []
    assert judge.info_calls == 0


async def test_batches_and_calls_at_once_keep_to_what_the_service_takes(address: str) -> None:
    """S8: a cap on what is in flight."""
    judge = Judge(info=RewardInfo("n", max_batch_size=3, max_concurrent_calls=2), together=2)
    assert await score(judge, address) == EXPECTED
    assert sorted(map(len, judge.asked)) == [1, 3, 3, 3]
    assert judge.most_running == 2


async def test_a_service_without_limits_is_not_flooded() -> None:
    """S8: a cap on what is in flight, where the service names none."""
    judge = Judge(info=RewardInfo("n", max_batch_size=1))
    actions = [joint_action(number) for number in range(50)]
    assert len(await score(judge, actions=actions)) == 50
    assert judge.most_running <= 16


async def test_the_cap_holds_over_all_callers_and_the_info_is_asked_once() -> None:
    judge = Judge(info=RewardInfo("n", max_concurrent_calls=2), together=2)
    async with serving(judge.register) as target, RewardClient(target) as client:
        calls = [client.score("r", TASKS, [action], timeout=20) for action in ACTIONS]
        found = await within(asyncio.gather(*calls))
    assert [entry for result in found for entry in result] == EXPECTED
    assert judge.most_running == 2
    assert judge.info_calls == 1


async def test_calls_carry_only_the_tasks_that_they_name() -> None:
    judge = Judge(info=RewardInfo("n", max_batch_size=1))
    await score(judge, actions=[joint_action(0, task=1)])
    assert judge.tasks == [{"t1"}]


async def test_large_joint_actions_are_spread_over_calls_that_any_server_takes(
    address: str,
) -> None:
    """S1: a server with gRPC's default limit of 4 MiB."""
    actions = [joint_action(number, completion="x" * 1_500_000) for number in range(5)]
    judge = Judge()
    assert await score(judge, address, actions) == EXPECTED[:5]
    assert sorted(map(len, judge.asked)) == [1, 2, 2]


async def test_a_message_that_no_server_takes_is_told_at_once() -> None:
    """S1: it would be as large the next time."""
    judge = Judge()
    with pytest.raises(CallError, match="larger than max") as error:
        await score(judge, actions=[joint_action(0, completion="x" * (5 << 20))])
    assert error.value.attempts == 1


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
    ],
)
async def test_a_transient_failure_is_asked_again_with_the_attempt_counted(
    code: grpc.StatusCode, address: str
) -> None:
    """S8: the same ids, so that a service that pays for its judges answers from its record."""
    judge = Judge(aborts(code), aborts(code), scores)
    assert await score(judge, address) == EXPECTED
    assert [[action.attempt for action in asked] for asked in judge.asked] == [
        [attempt] * 10 for attempt in (1, 2, 3)
    ]
    assert [[action.id for action in asked] for asked in judge.asked] == [
        [action.id for action in ACTIONS]
    ] * 3


async def test_one_attempt_is_one_call(address: str) -> None:
    """S8: gRPC itself retries nothing."""
    judge = Judge(aborts(grpc.StatusCode.UNAVAILABLE))
    with pytest.raises(CallError):
        await score(judge, address, retry=RetryPolicy(attempts=1))
    assert len(judge.asked) == 1


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.UNAUTHENTICATED,
    ],
)
async def test_a_permanent_failure_is_told_at_once(code: grpc.StatusCode, address: str) -> None:
    """S8: no retry storm, no reward of 0."""
    judge = Judge(aborts(code, "root cause"))
    with pytest.raises(CallError, match="root cause") as error:
        await score(judge, address)
    assert error.value.code is code
    assert len(judge.asked) == 1


async def test_a_service_that_never_answers_ends_in_an_error(address: str) -> None:
    """S5, U7: deadline, retry, then the root error."""

    async def hangs(actions: list[JointAction], context: Any) -> list[Score]:
        await asyncio.Event().wait()
        return []

    judge = Judge(hangs)
    with pytest.raises(CallError, match="DEADLINE_EXCEEDED") as error:
        await score(judge, address, timeout=0.2)
    assert error.value.attempts == QUICK.deadline_attempts == len(judge.asked)


async def test_one_bad_item_of_350_costs_that_item_only() -> None:
    """S8: all other scores arrive, and the bad one says why."""

    async def refuses_one(actions: list[JointAction], context: Any) -> list[Score]:
        if any(action.id == "j17" for action in actions):
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "item 17 is odd")
        return [score_of(action) for action in actions]

    actions = [joint_action(number) for number in range(350)]
    judge = Judge(refuses_one, info=RewardInfo("n", max_batch_size=1))
    found = await score(judge, actions=actions, on_failure="missing")
    assert [entry.value for entry in found] == [
        None if number == 17 else number for number in range(350)
    ]
    assert "item 17 is odd" in str(found[17].missing_reason)


async def test_failures_that_count_as_missing_name_the_reason_of_used_up_retries() -> None:
    judge = Judge(aborts(grpc.StatusCode.UNAVAILABLE, "the judge is away"))
    found = await score(judge, on_failure="missing")
    assert [entry.value for entry in found] == [None] * 10
    assert all("the judge is away" in str(entry.missing_reason) for entry in found)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_a_value_that_is_not_finite_is_missing(value: float, address: str) -> None:
    """L6: it poisons nothing, and says what it was."""

    async def odd(actions: list[JointAction], context: Any) -> list[Score]:
        return [Score(actions[0].id, value), *(score_of(action) for action in actions[1:])]

    found = await score(Judge(odd), address)
    assert found[0] == Score("j0", None, f"not finite: {value}")
    assert found[1:] == EXPECTED[1:]


@pytest.mark.parametrize("value", [1e308, -1e308, 1.1e100])
async def test_a_value_whose_square_overflows_is_missing(value: float, address: str) -> None:
    """L6: no sum or spread of rewards can leave the numbers later on."""

    async def odd(actions: list[JointAction], context: Any) -> list[Score]:
        return [Score(actions[0].id, value), *(score_of(action) for action in actions[1:])]

    found = await score(Judge(odd), address)
    assert found[0] == Score("j0", None, f"larger than 1e+100: {value:g}")
    assert found[1:] == EXPECTED[1:]


async def test_stated_reasons_components_and_info_arrive(address: str) -> None:
    answer = [
        Score("j0", None, "the judge refused"),
        Score("j1", 0.5, components={"length": 0.25}, info={"why": ["short"]}),
    ]

    async def script(actions: list[JointAction], context: Any) -> list[Score]:
        return answer

    assert await score(Judge(script), address, ACTIONS[:2]) == answer


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda all_: all_[1:], "no answer for 'j0'"),
        (lambda all_: [*all_, Score("j3", 1.0)], "more than one answer for 'j3'"),
        (lambda all_: [*all_, Score("zz", 1.0)], "unknown 'zz'"),
        (lambda all_: [Score("", 1.0), *all_[1:]], "joint_action_id"),
        (lambda all_: [], "'j0'"),
    ],
)
async def test_unknown_missing_and_doubled_ids_are_named(
    change: Any, named: str, address: str
) -> None:
    """S9: an error naming the ids, whatever is configured for failures."""

    async def script(actions: list[JointAction], context: Any) -> list[Score]:
        return list(change([score_of(action) for action in actions]))

    with pytest.raises(ContractError, match=named):
        await score(Judge(script), address, on_failure="missing")


async def test_a_task_that_is_not_given_is_refused_before_any_call() -> None:
    judge = Judge()
    with pytest.raises(FieldError, match="'t7'"):
        await score(judge, actions=[joint_action(0, task=7)])
    assert judge.asked == []


async def test_every_call_carries_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    judge = Judge()
    async with serving(judge.register) as target:
        endpoint = Endpoint(address=target, token_file=token)
        async with RewardClient(endpoint) as client:
            await within(client.score("r", TASKS, ACTIONS, timeout=20))
    assert judge.metadata[0]["authorization"] == "Bearer s3cret"


async def test_info_is_as_the_service_says() -> None:
    info = RewardInfo("length ratio", "2", 0.0, 1.0, 8, 2)
    async with serving(Judge(info=info).register) as target, RewardClient(target) as client:
        assert await within(client.get_info(timeout=20)) == info


async def test_replicas_behind_one_name_share_the_calls() -> None:
    """A "dns:" address spreads calls over all addresses that it resolves to."""
    judge = Judge()
    async with (
        serving(judge.register) as target,
        RewardClient(f"dns:///{target}", retry=QUICK) as client,
    ):
        assert await within(client.score("r", TASKS, ACTIONS, timeout=20)) == EXPECTED
