"""Calls that are made again: on transient codes only, with growing, jittered pauses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
from pydantic import BaseModel, ConfigDict, Field

from antiphon.clients.errors import CallError
from antiphon.clients.metrics import RETRIES
from antiphon.clients.waiting import progressed, waiting_for

T = TypeVar("T")

Sleep = Callable[[float], Awaitable[object]]


class RetryPolicy(BaseModel):
    """How often a call that failed with a transient code is made, and how long between.

    The defaults outlast a service that is away for 20 seconds. Pauses are in seconds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    attempts: int = Field(default=8, ge=1, description="most calls in all, the first included")
    deadline_attempts: int = Field(
        default=2, ge=1, description="most calls that may end at their deadline"
    )
    initial_backoff: float = Field(default=0.5, ge=0, description="first pause")
    max_backoff: float = Field(default=15.0, ge=0, description="longest pause")
    multiplier: float = Field(default=2.0, ge=1, description="growth from pause to pause")
    jitter: float = Field(
        default=0.5, ge=0, le=1, description="largest share of a pause that chance takes away"
    )

    def pause(self, failures: int) -> float:
        """Seconds to wait after that many failures in a row, at least 1."""
        # Beyond 64 doublings every pause is max_backoff, and the power would overflow.
        full = min(
            self.max_backoff, self.initial_backoff * self.multiplier ** min(failures - 1, 64)
        )
        return full * (1 - self.jitter * random.random())  # noqa: S311


class Attempts:
    """Counts the failures of one call and says whether it is made again.

    Args:
        policy: How often, and how long between.
        sleep: Waits that many seconds.
    """

    def __init__(self, policy: RetryPolicy, sleep: Sleep = asyncio.sleep) -> None:
        self._policy = policy
        self._sleep = sleep
        self._errors: list[CallError] = []
        self._in_a_row = 0
        self._deadlines = 0

    @property
    def number(self) -> int:
        """The present attempt, counted from 1."""
        return len(self._errors) + 1

    def progressed(self) -> None:
        """Forget the failures so far: the call got further than before, and the work with it."""
        self.forget_failures()
        progressed()

    def forget_failures(self) -> None:
        """Forget the failures so far; whether the work has got on, the caller tells."""
        self._in_a_row = 0
        self._deadlines = 0

    async def pause_after(self, error: CallError, *, transient: bool | None = None) -> None:
        """Wait before the next attempt.

        Raises:
            CallError: `error` itself, with what went before, where it is permanent or the
                attempts are used up.
        """
        earlier = tuple(self._errors)
        self._errors.append(error)
        self._in_a_row += 1
        if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
            self._deadlines += 1
        if transient is None:
            transient = error.transient
        if (
            not transient
            or self._in_a_row >= self._policy.attempts
            or self._deadlines >= self._policy.deadline_attempts
        ):
            raise error.after(len(self._errors), earlier)
        RETRIES.labels(error.rpc, error.code.name).inc()
        count = len(self._errors)
        with waiting_for(
            f"{error.rpc} at {error.address} to be tried again, which failed {count} "
            f"time{'s' if count > 1 else ''}, last with {error.summary}"
        ):
            await self._sleep(self._policy.pause(self._in_a_row))


async def call_with_retries(
    call: Callable[[int], Awaitable[T]],
    policy: RetryPolicy,
    *,
    sleep: Sleep = asyncio.sleep,
) -> T:
    """Make a call until it answers, fails for good, or the policy's attempts are used up.

    Args:
        call: Makes one attempt, given its number from 1; has a deadline of its own and raises
            CallError.
        policy: How often, and how long between.
        sleep: Waits that many seconds.

    Raises:
        CallError: The last attempt's, with how earlier ones failed.
    """
    attempts = Attempts(policy, sleep)
    while True:
        try:
            return await call(attempts.number)
        except CallError as error:
            await attempts.pause_after(error)
