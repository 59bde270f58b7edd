"""The checks, in the order in which they are told."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence

import grpc

from antiphon.clients.batches import by_id
from antiphon.clients.channel_options import FOREIGN_MESSAGE_BYTES
from antiphon.clients.cli.check.cases import UNUSUAL_TEXT, Cases
from antiphon.clients.cli.check.info import check_info
from antiphon.clients.cli.check.probe import Answer, Probe
from antiphon.clients.cli.check.report import Finding
from antiphon.clients.errors import ContractError
from antiphon.clients.types import FieldError, JointAction, Phase, RewardInfo

RUN_ID = "antiphon-check"
BATCH = 4
CALLS = 4

ANSWERED = "one answer for each id"
# A field that no version of the contract has: number 15000, text of one byte.
UNKNOWN_FIELD = b"\xc2\xa9\x07\x01x"
LARGE_BYTES = FOREIGN_MESSAGE_BYTES - 4096


async def check_service(probe: Probe, cases: Cases) -> list[Finding]:
    """Make every check; one that the service cannot be reached for ends them."""
    findings, info = await check_info(probe)
    if info is None:
        return findings
    return findings + await _Suite(probe, cases, info).run()


class _Suite:
    """The checks of the service's main method."""

    def __init__(self, probe: Probe, cases: Cases, info: RewardInfo) -> None:
        self._probe = probe
        self._cases = cases
        self._batch_size = min(BATCH, info.max_batch_size or BATCH)
        self._calls = min(CALLS, info.max_concurrent_calls or CALLS)

    async def run(self) -> list[Finding]:
        checks: list[Callable[[], Awaitable[list[Finding]]]] = [
            self._turns,
            self._several,
            self._again,
            self._texts,
            self._unknown_field,
            self._large,
            self._at_once,
            self._given_up,
            self._malformed,
        ]
        return [finding for check in checks for finding in await check()]

    async def _turns(self) -> list[Finding]:
        findings = []
        for turn in range(1, self._cases.num_turns + 1):
            name = f"turn {turn}" + (" with history" if turn > 1 else ", one joint action")
            findings.append(await self._answered(name, [self._cases.action(turn=turn)]))
        evaluated = self._cases.action(phase=Phase.EVAL)
        findings.append(await self._answered("phase EVAL", [evaluated]))
        return findings

    async def _several(self) -> list[Finding]:
        if self._batch_size == 1:
            # The service takes one at a time: there is no order to follow.
            return []
        actions = self._cases.batch(self._batch_size)
        forward, backward = await self._ask(actions), await self._ask(actions[::-1])
        findings = [self._finding(f"{len(actions)} joint actions in one call", actions, forward)]
        name = "the same in the opposite order"
        finding = self._finding(name, actions[::-1], backward)
        if findings[0].passed and finding.passed:
            first, second = self._by_place(forward), self._by_place(backward)
            followed_place = first == second and first != first[::-1]
            finding = Finding(
                name,
                not followed_place,
                "answers that follow the place, not the id" if followed_place else ANSWERED,
                "answers that belong to their ids, wherever they stand",
                "look each joint action's own completions up, and copy its own id",
            )
        return [*findings, finding]

    async def _again(self) -> list[Finding]:
        actions = self._cases.batch(self._batch_size)
        await self._ask(actions)
        again = [dataclasses.replace(action, attempt=2) for action in actions]
        return [await self._answered("the same ids again, attempt 2", again)]

    async def _texts(self) -> list[Finding]:
        return [
            await self._answered("empty completions", [self._cases.action(completion="")]),
            await self._answered("unusual text", [self._cases.action(completion=UNUSUAL_TEXT)]),
        ]

    async def _unknown_field(self) -> list[Finding]:
        actions = [self._cases.action()]
        answer = await self._probe.call(self._request(actions) + UNKNOWN_FIELD)
        return [self._finding("a field of a later version", actions, answer)]

    async def _large(self) -> list[Finding]:
        small = len(self._request([self._cases.action(completion="")]))
        length = (LARGE_BYTES - small) // self._cases.num_agents
        actions = [self._cases.action(completion="a" * length)]
        return [await self._answered("a request of almost 4 MiB", actions)]

    async def _at_once(self) -> list[Finding]:
        batches = [[self._cases.action()] for _ in range(self._calls)]
        answers = await asyncio.gather(*(self._ask(batch) for batch in batches))
        name = "calls one after another" if self._calls == 1 else f"{self._calls} calls at once"
        findings = [
            self._finding(name, batch, answer)
            for batch, answer in zip(batches, answers, strict=True)
        ]
        return [min(findings, key=lambda finding: finding.passed)]

    async def _given_up(self) -> list[Finding]:
        await self._probe.call(self._request(self._cases.batch(self._batch_size)), deadline=0.005)
        return [await self._answered("a call after one that was given up", [self._cases.action()])]

    async def _malformed(self) -> list[Finding]:
        action = self._cases.action()
        stranger = dataclasses.replace(action, task_id="no such task")
        requests = {
            "a request without joint actions": self._request([]),
            "an id twice in one request": self._request([action, action]),
            "a task that is not in the request": self._request([stranger]),
            "bytes that are no message": b"\xff\xff\xff",
        }
        findings = []
        for name, request in requests.items():
            answer = await self._probe.call(request)
            findings.append(
                _refused(name, answer)
                if name != "bytes that are no message"
                else _survived(name, answer)
            )
        findings.append(await self._answered("a call after malformed ones", [self._cases.action()]))
        return findings

    def _request(self, actions: Sequence[JointAction]) -> bytes:
        message = self._probe.subject.request(RUN_ID, self._cases.task, actions)
        data: bytes = message.SerializeToString()
        return data

    async def _ask(self, actions: Sequence[JointAction]) -> Answer:
        return await self._probe.call(self._request(actions))

    async def _answered(self, name: str, actions: Sequence[JointAction]) -> Finding:
        return self._finding(name, actions, await self._ask(actions))

    def _by_place(self, answer: Answer) -> list[str]:
        return [what for _, what in self._probe.subject.answers(answer.message)]

    def _finding(self, name: str, actions: Sequence[JointAction], answer: Answer) -> Finding:
        """Whether each joint action was answered once, in time and in form."""
        if answer.error is not None:
            return Finding(name, False, answer.error.summary, ANSWERED, _advice(answer))
        subject = self._probe.subject
        try:
            answers = by_id(
                [action.id for action in actions],
                subject.answers(answer.message),
                lambda entry: entry[0],
                address=self._probe.address,
                rpc=subject.rpc,
            )
        except ContractError as error:
            advice = "answer every joint action once, and copy its id as it is"
            return Finding(name, False, error.problem, ANSWERED, advice)
        except FieldError as error:
            advice = f"see the comments of {subject.service} in the proto files"
            return Finding(name, False, f"{error.field}: {error.got}", error.wanted, advice)
        got = answers[0][1] if len(answers) == 1 else f"{len(answers)} answers"
        return Finding(name, True, f"{_short(got)} in {answer.seconds:.2f} s", ANSWERED)


def _refused(name: str, answer: Answer) -> Finding:
    wanted = grpc.StatusCode.INVALID_ARGUMENT
    return Finding(
        name,
        answer.error is not None and answer.error.code is wanted,
        answer.error.summary if answer.error else "an answer, as if nothing were wrong",
        wanted.name,
        "refuse it with INVALID_ARGUMENT and say which field is wrong; other codes look like a "
        "fault of the service, and some are tried again",
    )


def _survived(name: str, answer: Answer) -> Finding:
    """Servers answer what they cannot parse in different ways; they must not accept it or hang."""
    died = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
    return Finding(
        name,
        answer.error is not None and answer.error.code not in died,
        answer.error.summary if answer.error else "an answer, as if nothing were wrong",
        "an error at once, from a process that lives on",
        "let the protobuf library of the server refuse it",
    )


def _advice(answer: Answer) -> str:
    error = answer.error
    assert error is not None
    match error.code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return (
                "answer sooner, or check with a longer --timeout and set score_timeout in the run"
            )
        case grpc.StatusCode.UNAVAILABLE:
            return "look into the service's log: it went away or refused the connection"
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return "accept messages of 4 MiB, gRPC's own default"
        case grpc.StatusCode.UNAUTHENTICATED:
            return "give --token-file"
        case grpc.StatusCode.UNIMPLEMENTED:
            return "register the service under its full name, antiphon.v1"
    return (
        "give a fault of one joint action as its missing_reason, and look into the service's log; "
        "where it reads columns of the dataset, give a row with --item"
    )


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
