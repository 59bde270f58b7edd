"""Waits for generation services that another run holds, until that run's lease has ended.

A run that ended or died a moment ago still has its services for as long as their lease says. A run
that lives calls them, which renews the lease: who waits for it gives up soon.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable

from antiphon.clients.errors import CallError
from antiphon.clients.waiting import waiting_for

logger = logging.getLogger(__name__)

LEASE_HELD = "RUN_LEASE_HELD"
LEASES = 2
"""So many leases are waited for: a call that a dead run has left open may renew the first one."""
SLACK = 1.0
"""Seconds that a wait may take longer than it was told."""


class LeaseWait:
    """Waits for the services of one agent.

    Args:
        agent: Whose services they are, counted from 0.
        longest: Seconds that each of them is waited for at most.
        note: Tells the user, once for each service.
        sleep: Waits that many seconds.
        now: Seconds that only grow.
    """

    def __init__(
        self,
        agent: int = 0,
        *,
        longest: float = 0.0,
        note: Callable[[str], object] = logger.warning,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agent = agent
        self._longest = longest
        self._note = note
        self._sleep = sleep
        self._now = now
        self._until: dict[str, float] = {}

    async def ended(self, error: CallError) -> bool:
        """Wait until the lease that `error` tells of should have ended, so that to ask again helps.

        Returns:
            False where it is not waited for: it is too long, or its run has called again.
        """
        try:
            left = float(error.metadata["lease_seconds_left"])
        except (KeyError, ValueError):
            return False
        if not math.isfinite(left):  # What comes over the wire may be "nan".
            return False
        where, now = error.address, self._now()
        first = where not in self._until
        if first:
            self._until[where] = now + min(LEASES * left, self._longest)
        if now + left > self._until[where] + SLACK:
            return False
        held = (
            f"agent {self._agent}'s generation service at {where}, which run "
            f"{error.metadata.get('run_id', 'unknown')} has for another {left:.0f} s"
        )
        if first:
            self._note(f"waiting for {held} (its lease), unless that run calls it again")
        with waiting_for(held):
            await self._sleep(left)
        return True
