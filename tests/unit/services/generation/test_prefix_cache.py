"""What old weights computed is dropped, or nothing is sampled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from antiphon.services.generation.engines.prefix_cache import drop_prefix_cache


def cache(refusals: int) -> tuple[Callable[[], Awaitable[bool]], list[bool]]:
    """A cache that is in use so many times, and what it answered."""
    answers: list[bool] = []

    async def reset() -> bool:
        answers.append(len(answers) >= refusals)
        return answers[-1]

    return reset, answers


async def test_a_cache_in_use_is_dropped_once_it_is_free() -> None:
    """S4: vLLM answers False and keeps the cache while an aborted request still holds blocks."""
    reset, answers = cache(refusals=2)
    await drop_prefix_cache(reset, pause=0.0)
    assert answers == [False, False, True]


async def test_a_cache_that_stays_in_use_is_an_error() -> None:
    """S4: the push fails rather than leave a cache from before it."""
    reset, answers = cache(refusals=10**6)
    with pytest.raises(RuntimeError, match="still in use"):
        await drop_prefix_cache(reset, pause=0.0)
    assert not any(answers)
