"""Waits for services that are still starting, and says so, and why they are not there yet."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError
from antiphon.clients.reach import Verdict, reach

T = TypeVar("T")

logger = logging.getLogger(__name__)

QUIET_SECONDS = 2.0
POLL_SECONDS = 0.5


class Reachable(Protocol):
    """What a client says of where it calls."""

    @property
    def endpoint(self) -> Endpoint:
        """Where the service is."""
        ...

    @property
    def service(self) -> str:
        """Full name of the gRPC service."""
        ...


class StartWait:
    """Tells once why a service is waited for, when it has been for two seconds.

    Args:
        longest: Seconds that it is waited for at most (`start_timeout`).
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._began = time.monotonic()
        self._told = False

    @property
    def over(self) -> bool:
        """Whether it has been waited for long enough."""
        return time.monotonic() - self._began > self._longest

    @property
    def due(self) -> bool:
        """Whether it is time to tell."""
        return not self._told and time.monotonic() - self._began >= QUIET_SECONDS

    def tell(self, why: str) -> None:
        """It is not there yet; why not."""
        if self.due:
            self._told = True
            logger.warning(
                "waiting for a service, %g s at most (start_timeout): %s", self._longest, why
            )


async def started(
    client: Reachable, ask: Callable[[], Awaitable[T]], *, start_timeout: float, timeout: float
) -> T:
    """What a service answers once it has started.

    Args:
        client: Of the service.
        ask: Asks it, once.
        start_timeout: Seconds that it may take to start.
        timeout: Seconds that finding out why it does not answer may take.

    Raises:
        CallError: It has not answered in time, with what is wrong and what to do about it; or it
            refused.
    """
    absence = StartWait(start_timeout)
    while True:
        try:
            return await ask()
        except CallError as error:
            if not error.transient:
                raise
            if absence.over:
                raise CallError(
                    error.code,
                    f"{await _why(client, error, timeout)}; waited {start_timeout:g} s for it "
                    "(start_timeout)",
                    address=error.address,
                    rpc=error.rpc,
                    reason=error.reason,
                ) from error
            if absence.due:
                absence.tell(f"{client.endpoint.address}: {await _why(client, error, timeout)}")
            await asyncio.sleep(POLL_SECONDS)


async def _why(client: Reachable, error: CallError, timeout: float) -> str:
    """What is wrong with an address, and what to do about it."""
    for remark in await reach(client.endpoint, client.service, timeout=timeout):
        if remark.verdict is Verdict.FAULT:
            return f"{remark.what}: {remark.detail}; {remark.advice}"
    return error.summary
