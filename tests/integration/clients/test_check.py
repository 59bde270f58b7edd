"""`antiphon check` passes a service that keeps the contract, and names what another one breaks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tests.integration.clients.judges import Guide, Judge
from tests.integration.clients.servers import abort, serving, within

from antiphon.clients.cli.check.cases import Cases
from antiphon.clients.cli.check.probe import Probe, Subject
from antiphon.clients.cli.check.report import Finding
from antiphon.clients.cli.check.reward import RewardSubject
from antiphon.clients.cli.check.suite import check_service
from antiphon.clients.cli.check.transition import TransitionSubject
from antiphon.clients.endpoint import Endpoint
from antiphon.clients.types import (
    BranchEnd,
    FieldError,
    JointAction,
    NextPrompts,
    RewardInfo,
    Score,
    ScoredJointAction,
    TransitionResult,
)

INFO = RewardInfo("test", max_batch_size=4, max_concurrent_calls=2)


def ratio(action: JointAction) -> Score:
    first, second = (len(entry.completion) for entry in action.actions)
    return Score(action.id, second / max(first, 1))


async def ratios(actions: list[JointAction], context: Any) -> list[Score]:
    return [ratio(action) for action in reversed(actions)]


class Strict(Judge):
    """Refuses malformed requests with INVALID_ARGUMENT, as the contract says."""

    async def Score(self, request: Any, context: Any) -> Any:  # noqa: N802
        try:
            return await super().Score(request, context)
        except FieldError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))


class StrictGuide(Guide):
    """Refuses malformed requests with INVALID_ARGUMENT, as the contract says."""

    async def Transition(self, request: Any, context: Any) -> Any:  # noqa: N802
        try:
            return await super().Transition(request, context)
        except FieldError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))


async def check(
    register: Callable[[grpc.aio.Server], None],
    subject: Subject,
    *,
    timeout: float = 10,
    options: list[tuple[str, Any]] | None = None,
) -> list[Finding]:
    async with (
        serving(register, options=options) as target,
        Probe(Endpoint.of(target), subject, timeout) as probe,
    ):
        found: list[Finding] = await within(check_service(probe, Cases(2, 2, {"prompt": "p"})), 120)
        return found


async def check_reward(judge: Judge, **options: Any) -> list[Finding]:
    return await check(judge.register, RewardSubject(2), **options)


def failed(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings if not finding.passed]


async def test_a_reward_service_that_keeps_the_contract_passes_every_check() -> None:
    judge = Strict(ratios, info=INFO)
    findings = await check_reward(judge)
    assert failed(findings) == []
    assert len(findings) >= 18
    asked = [action for actions in judge.asked for action in actions]
    # It was really tried: turns with history, attempts, empty, unusual and large texts.
    assert {action.turn for action in asked} == {1, 2}
    assert {action.attempt for action in asked} == {1, 2}
    completions = [entry.completion for action in asked for entry in action.actions]
    assert "" in completions
    assert any("\x00" in text for text in completions)
    assert max(map(len, completions)) > 2_000_000
    assert max(map(len, judge.asked)) == 4
    assert judge.most_running <= 2


async def test_a_transition_service_that_keeps_the_contract_passes_every_check() -> None:
    async def script(scored: list[ScoredJointAction], context: Any) -> list[TransitionResult]:
        return [
            TransitionResult(
                entry.joint_action.id,
                BranchEnd("good enough")
                if entry.score.value == 0.5
                else NextPrompts(
                    tuple(f"{len(e.completion)} letters" for e in entry.joint_action.actions)
                ),
            )
            for entry in scored
        ]

    findings = await check(StrictGuide(script).register, TransitionSubject(2))
    assert failed(findings) == []


async def test_another_service_is_told_in_one_line() -> None:
    findings = await check(StrictGuide().register, RewardSubject(2))
    assert failed(findings) == ["service"]
    assert findings[-1].got == "a gRPC server without Score"
    assert "another service may answer there" in findings[-1].advice


def judged(change: Callable[[list[JointAction], list[Score]], list[Score]]) -> Judge:
    async def script(actions: list[JointAction], context: Any) -> list[Score]:
        return change(actions, [ratio(action) for action in actions])

    return Strict(script, info=INFO)


def by_place(actions: list[JointAction], scores: list[Score]) -> list[Score]:
    return [Score(action.id, float(place)) for place, action in enumerate(actions)]


def only_the_first(actions: list[JointAction], scores: list[Score]) -> list[Score]:
    return scores[:1]


def one_twice(actions: list[JointAction], scores: list[Score]) -> list[Score]:
    return [*scores, scores[0]]


def other_ids(actions: list[JointAction], scores: list[Score]) -> list[Score]:
    return [Score(score.joint_action_id + "x", score.value) for score in scores]


def not_the_empty(actions: list[JointAction], scores: list[Score]) -> list[Score]:
    if any(entry.completion == "" for action in actions for entry in action.actions):
        raise ZeroDivisionError
    return scores


def not_again(actions: list[JointAction], scores: list[Score]) -> list[Score]:
    return scores if actions[0].attempt == 1 else []


def not_with_history(actions: list[JointAction], scores: list[Score]) -> list[Score]:
    assert actions[0].turn == 1
    return scores


@pytest.mark.parametrize(
    ("change", "check_name"),
    [
        (by_place, "the same in the opposite order"),
        (only_the_first, "4 joint actions in one call"),
        (one_twice, "turn 1, one joint action"),
        (other_ids, "turn 1, one joint action"),
        (not_the_empty, "empty completions"),
        (not_again, "the same ids again, attempt 2"),
        (not_with_history, "turn 2 with history"),
    ],
)
async def test_a_broken_rule_is_named(
    change: Callable[[list[JointAction], list[Score]], list[Score]], check_name: str
) -> None:
    """S9 and its kind: what the author is told is which rule, what came and what to do."""
    findings = await check_reward(judged(change))
    assert check_name in failed(findings)
    finding = next(finding for finding in findings if finding.check == check_name)
    assert finding.got
    assert finding.wanted
    assert finding.advice


async def test_missing_and_doubled_ids_are_named_in_the_finding() -> None:
    """S9: an error naming the ids."""
    findings = await check_reward(judged(one_twice))
    finding = next(finding for finding in findings if finding.check.startswith("turn 1"))
    assert "more than one answer for 'check-" in finding.got


async def test_malformed_requests_that_are_answered_are_told() -> None:
    class Lenient(Judge):
        async def Score(self, request: Any, context: Any) -> Any:  # noqa: N802
            from antiphon.v1 import common_pb2, reward_pb2

            return reward_pb2.ScoreResponse(
                scores=[
                    common_pb2.Score(joint_action_id=action.id, value=1.0)
                    for action in request.joint_actions
                ]
            )

    findings = await check_reward(Lenient(info=INFO))
    assert failed(findings) == [
        "a request without joint actions",
        "an id twice in one request",
        "a task that is not in the request",
    ]


async def test_a_crash_on_malformed_requests_is_told_from_a_refusal() -> None:
    """INTERNAL or UNKNOWN say that the service is at fault; the request was."""
    findings = await check_reward(Judge(ratios, info=INFO))
    assert "a request without joint actions" in failed(findings)


async def test_a_service_with_a_small_message_limit_is_told() -> None:
    """S1: what any server takes by default is what a run may send."""
    findings = await check_reward(
        Strict(ratios, info=INFO), options=[("grpc.max_receive_message_length", 1 << 20)]
    )
    assert failed(findings) == ["a request of almost 4 MiB"]


async def test_a_service_that_answers_too_late_is_told() -> None:
    """S5: deadlines are kept, and the check itself ends."""

    async def hangs_on_turn_2(actions: list[JointAction], context: Any) -> list[Score]:
        if actions[0].turn == 2:
            await asyncio.Event().wait()
        return [ratio(action) for action in actions]

    findings = await check_reward(Strict(hangs_on_turn_2, info=INFO), timeout=2)
    assert failed(findings) == ["turn 2 with history"]
    assert any("DEADLINE_EXCEEDED" in finding.got for finding in findings)


async def test_a_service_without_info_or_with_an_odd_one_is_told() -> None:
    assert failed(await check_reward(Strict(ratios))) == ["GetRewardInfo"]
    odd = RewardInfo("n", value_min=1.0, value_max=0.0)
    assert failed(await check_reward(Strict(ratios, info=odd))) == ["GetRewardInfo"]


@pytest.mark.parametrize(
    "outcome",
    [
        NextPrompts(("only one",)),
        NextPrompts(("a", "b", "c")),
        NextPrompts(("a", "")),
        NextPrompts(()),
    ],
)
async def test_prompts_that_do_not_fit_the_agents_are_told(outcome: NextPrompts) -> None:
    """U5: one prompt per agent, none of them empty."""

    async def script(scored: list[ScoredJointAction], context: Any) -> list[TransitionResult]:
        return [TransitionResult(entry.joint_action.id, outcome) for entry in scored]

    findings = await check(StrictGuide(script).register, TransitionSubject(2))
    assert "turn 1, one joint action" in failed(findings)


async def run_check(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from antiphon.clients.cli import main; main()",
        "check",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"COLUMNS": "200"},
    )
    output, _ = await within(process.communicate(), 120)
    return process.returncode, output.decode()


async def test_the_command_tells_and_its_exit_code_says_whether_all_is_well(address: str) -> None:
    async with serving(Strict(ratios, info=INFO).register, address) as target:
        code, output = await run_check("reward", target, "--item", '{"prompt": "p"}')
    assert code == 0, output
    assert "keeps the contract" in output
    assert "FAIL" not in output


async def test_the_command_fails_for_a_service_that_breaks_the_contract() -> None:
    async with serving(judged(one_twice).register) as target:
        code, output = await run_check("reward", target)
    assert code == 1
    assert "FAIL" in output
    assert "does not keep the contract" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("reward", "localhost:1"), "UNAVAILABLE"),
        (("reward", "http://localhost:1"), "leave http:// out"),
        (("transition", "localhost:1", "--item", "[1]"), "--item"),
        (("transition", "localhost:1", "--item", "@/no/such/file"), "/no/such/file"),
        (("reward", "localhost:1", "--tls-cert", "c.pem"), "both or neither"),
        (("reward", "10.0.0.1:1", "--token-file", "t"), "plain text"),
    ],
)
async def test_the_command_says_what_is_wrong_with_its_arguments(
    arguments: tuple[str, ...], told: str
) -> None:
    code, output = await run_check(*arguments)
    assert code in (1, 2)
    assert told in output
    assert "Traceback" not in output
