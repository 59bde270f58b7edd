"""The client of a transition service."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from antiphon.clients.batches import (
    CALLS_AT_ONCE,
    all_or_first_error,
    by_id,
    split,
    tasks_by_id,
)
from antiphon.clients.channel_options import PING_SECONDS_FOREIGN, REQUEST_BYTES
from antiphon.clients.connection import Client
from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import ContractError
from antiphon.clients.retry import RetryPolicy, call_with_retries
from antiphon.clients.types import NextPrompts, ScoredJointAction, Task, TransitionResult
from antiphon.clients.waiting import progressed
from antiphon.clients.wire import transition_request_to_proto, transition_response_from_proto
from antiphon.v1 import transition_pb2 as pb
from antiphon.v1.transition_pb2_grpc import TransitionServiceStub


class TransitionClient(Client):
    """Calls a transition service.

    Args:
        endpoint: Where the service is; a plain address will do.
        retry: How often transient failures are tried again.
    """

    def __init__(self, endpoint: Endpoint | str, *, retry: RetryPolicy | None = None) -> None:
        super().__init__(
            endpoint,
            retry=retry,
            service="antiphon.v1.TransitionService",
            ping_seconds=PING_SECONDS_FOREIGN,
        )
        self._stub = TransitionServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE)

    async def check(self, timeout: float) -> None:
        """Find out, by calls that change nothing, whether the service can be called.

        Args:
            timeout: Seconds that each call may take; none is made again.

        Raises:
            CallError: It cannot be reached, is still starting, or does not let the caller in.
            FieldError: Another service answers there.
        """

        async def nothing() -> None:
            await self._once(self._stub.Transition, "Transition", pb.TransitionRequest(), timeout)

        await self._check(nothing, timeout, needed=True)

    async def transition(
        self,
        run_id: str,
        tasks: Sequence[Task],
        scored: Sequence[ScoredJointAction],
        *,
        num_agents: int,
        timeout: float,
    ) -> list[TransitionResult]:
        """Ask for the next prompts, or the end, of every joint action's branch.

        Each further attempt counts `attempt` up.

        Args:
            run_id: The run that asks.
            tasks: The tasks that the joint actions name; others are left out of the calls.
            scored: Joint actions with their scores, ids distinct.
            num_agents: How many prompts each answer must have.
            timeout: Seconds that each attempt of a call may take.

        Returns:
            One result per joint action, in their order.

        Raises:
            CallError: A permanent failure, or the attempts are used up.
            ContractError: Ids are unknown, missing or doubled, or prompts are too few, too many
                or empty.
            FieldError: A joint action names no task, or a task's item is not JSON.
        """
        if not scored:
            return []
        known = tasks_by_id(tasks, (entry.joint_action.task_id for entry in scored))

        async def one(batch: list[ScoredJointAction]) -> list[TransitionResult]:
            async with self._calls:
                return await self._transition_batch(run_id, known, batch, num_agents, timeout)

        sizes = [
            transition_request_to_proto(
                run_id, [known[entry.joint_action.task_id]], [entry]
            ).ByteSize()
            for entry in scored
        ]
        batches = split(scored, sizes, most=0, most_bytes=REQUEST_BYTES)
        results = await all_or_first_error(one(batch) for batch in batches)
        return [result for batch in results for result in batch]

    async def _transition_batch(
        self,
        run_id: str,
        tasks: dict[str, Task],
        batch: list[ScoredJointAction],
        num_agents: int,
        timeout: float,
    ) -> list[TransitionResult]:
        names = {entry.joint_action.task_id for entry in batch}
        named = [task for name, task in tasks.items() if name in names]

        async def attempt(number: int) -> pb.TransitionResponse:
            request = transition_request_to_proto(
                run_id, named, [_at_attempt(entry, number) for entry in batch]
            )
            response: pb.TransitionResponse = await self._once(
                self._stub.Transition, "Transition", request, timeout
            )
            return response

        response = await call_with_retries(attempt, self.retry)
        progressed()
        results = by_id(
            [entry.joint_action.id for entry in batch],
            self._checked("Transition", transition_response_from_proto, response),
            lambda result: result.joint_action_id,
            address=self.address,
            rpc="Transition",
        )
        for result in results:
            outcome = result.outcome
            if isinstance(outcome, NextPrompts) and len(outcome.prompts) != num_agents:
                raise ContractError(
                    self.address,
                    "Transition",
                    f"{len(outcome.prompts)} prompts for joint action {result.joint_action_id!r}, "
                    f"wanted {num_agents}, one per agent",
                )
        return results


def _at_attempt(entry: ScoredJointAction, number: int) -> ScoredJointAction:
    action = entry.joint_action
    return dataclasses.replace(
        entry, joint_action=dataclasses.replace(action, attempt=action.attempt + number - 1)
    )
