"""Waits for services that are still starting, and says so, and why they are not there yet."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError
from antiphon.clients.reach import first_fault
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.waiting import progressed

T = TypeVar("T")

logger = logging.getLogger(__name__)

ONCE = RetryPolicy(attempts=1)
"""For calls that are made again here."""
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
    def seconds(self) -> float:
        """How long it has been waited for."""
        return time.monotonic() - self._began

    @property
    def over(self) -> bool:
        """Whether that is long enough."""
        return self.seconds > self._longest

    @property
    def due(self) -> bool:
        """Whether it is time to tell."""
        return not self._told and self.seconds >= QUIET_SECONDS

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
    absence, why, last = StartWait(start_timeout), "", False
    while True:
        try:
            return await ask()
        except CallError as error:
            if not error.transient:
                raise
            if last:
                waited = f"waited {absence.seconds:.0f} s for it (start_timeout)"
                raise _with(error, why, waited) from error
            if absence.over or absence.due:
                why = await _why(client, timeout)
                absence.tell(f"{client.endpoint.address}: {why or error.summary}")
                if absence.over:
                    last = True
                    continue  # It may have started while that was found out.
            progressed()  # As long as `start_timeout` allows it, waiting is no standstill.
            await asyncio.sleep(POLL_SECONDS)


async def explained(client: Reachable, error: CallError, timeout: float) -> CallError:
    """A failed call with what is wrong with the address, and what to do about it."""
    return _with(error, await _why(client, timeout))


async def _why(client: Reachable, timeout: float) -> str:
    fault = await first_fault(client.endpoint, client.service, timeout=timeout)
    return "" if fault is None else f"{fault.detail}; {fault.advice}"


def _with(error: CallError, *told: str) -> CallError:
    return CallError(
        error.code,
        "; ".join(filter(None, (*told, error.message))),
        address=error.address,
        rpc=error.rpc,
        reason=error.reason,
        metadata=error.metadata,
        violations=error.violations,
    )
