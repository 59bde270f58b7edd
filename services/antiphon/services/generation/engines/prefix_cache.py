"""Has an engine forget what it computed with other weights."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

_ATTEMPTS = 100


async def drop_prefix_cache(reset: Callable[[], Awaitable[bool]], *, pause: float = 0.05) -> None:
    """Drops a prefix cache, trying again while the engine says that it cannot.

    It resets nothing while blocks are in use, and those of an aborted request are freed a little
    after the request has ended.

    Args:
        reset: Drops the cache and returns whether it did.
        pause: Seconds between two attempts.

    Raises:
        RuntimeError: It cannot; what is sampled now might begin with what old weights computed.
    """
    for _ in range(_ATTEMPTS):
        if await reset():
            return
        await asyncio.sleep(pause)
    raise RuntimeError(
        f"the engine's prefix cache is still in use after {_ATTEMPTS} attempts to drop it, so it "
        "holds what old weights computed; push again, or restart this service"
    )
