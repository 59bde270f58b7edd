"""Health says what the engine does: an engine that hangs is not served any longer."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

logger = logging.getLogger(__name__)

STEP_LIMIT_SECONDS = 300.0
"""How long a step of an engine may take by default: no step of one that works takes as long."""

_LOOKS = 10
"""How often the engine is looked at within the time that a step may take."""
_LONGEST_PAUSE_SECONDS = 1.0


class Stepping(Protocol):
    """An engine, as far as its liveness goes."""

    @property
    def seconds_since_step(self) -> float:
        """Age of the last finished step while there is work; 0 while idle."""
        ...


@asynccontextmanager
async def live_health(
    engine: Stepping,
    set_serving: Callable[[bool], Awaitable[None]],
    *,
    limit_seconds: float | None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> AsyncIterator[None]:
    """Within the block, health is NOT_SERVING while a step of the engine takes too long.

    An engine that works gets on with every token, batch and swap, however long its queue is, and an
    idle one has no step to wait for; only one that stands still in the middle of its work is told,
    or one that cannot be asked.
    It is SERVING again with its next step.

    Args:
        engine: Says how long ago it got on.
        set_serving: Sets what health says.
        limit_seconds: Seconds that a step may take; None for no limit.
        sleep: Waits that many seconds.
    """
    if limit_seconds is None:
        yield
        return
    watching = asyncio.create_task(_watch(engine, set_serving, limit_seconds, sleep))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(
    engine: Stepping,
    set_serving: Callable[[bool], Awaitable[None]],
    limit: float,
    sleep: Callable[[float], Awaitable[object]],
) -> None:
    serving, seen = True, True
    while True:
        await sleep(min(limit / _LOOKS, _LONGEST_PAUSE_SECONDS))
        try:
            age = engine.seconds_since_step
        except Exception:
            if seen:
                logger.exception("the engine does not say how it gets on: it counts as standing")
            age, seen = math.inf, False
        else:
            seen = True
        live = age <= limit
        if live is serving:
            continue
        serving = live
        await set_serving(serving)
        if serving:
            logger.warning("the engine gets on again: health says SERVING")
        elif seen:
            logger.error(
                "the engine has work and made no step for %.0f s (--step-limit %g): health says "
                "NOT_SERVING",
                age,
                limit,
            )
        else:
            logger.error("health says NOT_SERVING")
