"""The client of a reward service."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import grpc

from antiphon.clients.batches import (
    CALLS_AT_ONCE,
    all_or_first_error,
    by_id,
    even,
    split,
    tasks_by_id,
)
from antiphon.clients.channel_options import PING_SECONDS_FOREIGN, REQUEST_BYTES
from antiphon.clients.connection import Client
from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError
from antiphon.clients.retry import RetryPolicy, call_with_retries
from antiphon.clients.types import JointAction, RewardInfo, Score, Task
from antiphon.clients.waiting import progressed
from antiphon.clients.wire import (
    joint_action_to_proto,
    reward_info_from_proto,
    score_request_to_proto,
    score_response_from_proto,
    task_to_proto,
)
from antiphon.v1 import reward_pb2 as pb
from antiphon.v1.reward_pb2_grpc import RewardServiceStub

LARGEST_VALUE = 1e100
"""Largest magnitude of a score: sums and squares of larger ones leave the numbers."""
INFO_SECONDS = 30.0
"""Longest deadline of the GetRewardInfo call that precedes the first Score call."""


class RewardClient(Client):
    """Calls a reward service.

    Args:
        endpoint: Where the service is; a plain address will do.
        retry: How often transient failures are tried again.
    """

    def __init__(self, endpoint: Endpoint | str, *, retry: RetryPolicy | None = None) -> None:
        super().__init__(
            endpoint,
            retry=retry,
            service="antiphon.v1.RewardService",
            ping_seconds=PING_SECONDS_FOREIGN,
        )
        self._stub = RewardServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._limits: asyncio.Future[tuple[RewardInfo, asyncio.Semaphore]] | None = None

    async def check(self, timeout: float) -> None:
        """Find out, by calls that change nothing, whether the service can be called.

        Args:
            timeout: Seconds that each call may take; none is made again.

        Raises:
            CallError: It cannot be reached, is still starting, or does not let the caller in.
            FieldError: Another service answers there.
        """
        request = pb.GetRewardInfoRequest()
        await self._check(
            lambda: self._once(self._stub.GetRewardInfo, "GetRewardInfo", request, timeout), timeout
        )

    async def get_info(self, timeout: float) -> RewardInfo:
        """Ask what the service is and how it wants to be called; its address where it says nothing.

        Raises:
            CallError: It does not answer.
        """
        try:
            return await self._call(
                self._stub.GetRewardInfo,
                pb.GetRewardInfoRequest(),
                reward_info_from_proto,
                rpc="GetRewardInfo",
                timeout=timeout,
            )
        except CallError as error:
            if error.code is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            return RewardInfo(name=self.address)

    async def score(
        self,
        run_id: str,
        tasks: Sequence[Task],
        joint_actions: Sequence[JointAction],
        *,
        timeout: float,
        on_failure: Literal["raise", "missing"] = "raise",
    ) -> list[Score]:
        """Score joint actions, in calls as large and as many at once as the service takes.

        Each further attempt counts `attempt` up. A value that is not finite, or beyond
        `LARGEST_VALUE`, becomes a missing score whose reason says so.

        Args:
            run_id: The run that asks.
            tasks: The tasks that the joint actions name; others are left out of the calls.
            joint_actions: What to score, ids distinct.
            timeout: Seconds that each attempt of a call may take.
            on_failure: "missing" turns a call that failed for good, or whose attempts are used
                up, into missing scores of its joint actions; "raise" ends at the first.

        Returns:
            One score per joint action, in their order.

        Raises:
            CallError: A permanent failure, or the attempts are used up.
            ContractError: Ids are unknown, missing or doubled, or a score is malformed.
            FieldError: A joint action names no task, or a task's item is not JSON.
        """
        if not joint_actions:
            return []
        known = tasks_by_id(tasks, (action.task_id for action in joint_actions))
        info, semaphore = await self._get_limits(min(timeout, INFO_SECONDS))

        async def one(batch: list[JointAction]) -> list[Score]:
            async with semaphore:
                try:
                    return await self._score_batch(run_id, known, batch, timeout)
                except CallError as error:
                    if on_failure == "raise":
                        raise
                    return [Score(action.id, None, str(error)) for action in batch]

        batches = self._batches(known, joint_actions, info.max_batch_size)
        scores = await all_or_first_error(one(batch) for batch in batches)
        return [score for batch in scores for score in batch]

    def _batches(
        self, tasks: dict[str, Task], joint_actions: Sequence[JointAction], most: int
    ) -> list[list[JointAction]]:
        task_sizes = {
            name: task_to_proto(tasks[name]).ByteSize()
            for name in {action.task_id for action in joint_actions}
        }
        sizes = [
            joint_action_to_proto(action).ByteSize() + task_sizes[action.task_id]
            for action in joint_actions
        ]
        most = even(len(joint_actions), most)
        return split(joint_actions, sizes, most=most, most_bytes=REQUEST_BYTES)

    async def _score_batch(
        self, run_id: str, tasks: dict[str, Task], batch: list[JointAction], timeout: float
    ) -> list[Score]:
        named = {action.task_id: tasks[action.task_id] for action in batch}

        async def attempt(number: int) -> pb.ScoreResponse:
            asked = [
                dataclasses.replace(action, attempt=action.attempt + number - 1) for action in batch
            ]
            request = score_request_to_proto(run_id, named.values(), asked)
            response: pb.ScoreResponse = await self._once(
                self._stub.Score, "Score", request, timeout
            )
            return response

        response = await call_with_retries(attempt, self.retry)
        progressed()
        scores = by_id(
            [action.id for action in batch],
            self._checked("Score", score_response_from_proto, response),
            lambda score: score.joint_action_id,
            address=self.address,
            rpc="Score",
        )
        return [_usable(score) for score in scores]

    async def _get_limits(self, timeout: float) -> tuple[RewardInfo, asyncio.Semaphore]:
        """Ask once what the service takes, however many callers wait for it."""
        if self._limits is None or (self._limits.done() and _failed(self._limits)):
            self._limits = asyncio.ensure_future(self._ask_limits(timeout))
            # A failure counts as seen even where every caller has gone before it came.
            self._limits.add_done_callback(_failed)
        return await asyncio.shield(self._limits)

    async def _ask_limits(self, timeout: float) -> tuple[RewardInfo, asyncio.Semaphore]:
        info = await self.get_info(timeout)
        return info, asyncio.Semaphore(info.max_concurrent_calls or CALLS_AT_ONCE)


def why_unusable(value: float) -> str | None:
    """Why a value cannot be a reward; None where it can."""
    if not math.isfinite(value):
        return f"not finite: {value}"
    if abs(value) > LARGEST_VALUE:
        return f"larger than {LARGEST_VALUE:g}: {value:g}"
    return None


def _failed(future: asyncio.Future[tuple[RewardInfo, asyncio.Semaphore]]) -> bool:
    return future.cancelled() or future.exception() is not None


def _usable(score: Score) -> Score:
    if score.value is None or (reason := why_unusable(score.value)) is None:
        return score
    return dataclasses.replace(score, value=None, missing_reason=reason)
