"""S15: health answers while calls come and go, so collections of garbage have to be short."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from antiphon.services.common.garbage import short_collections


def full_collections(block: AbstractContextManager[Any]) -> int:
    """How many collections walk through everything while many objects are made and kept."""
    full: list[int] = []

    def told(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 2:
            full.append(about["collected"])

    with block:
        gc.callbacks.append(told)
        try:
            kept = [[number] for number in range(300_000)]
        finally:
            gc.callbacks.remove(told)
    assert len(kept) == 300_000
    return len(full)


def test_what_a_burst_of_calls_holds_is_not_walked_through_again_and_again() -> None:
    assert full_collections(nullcontext()) > 0
    assert full_collections(short_collections()) == 0


def test_what_is_there_when_serving_begins_is_walked_through_no_more_until_it_ends() -> None:
    before = gc.get_threshold()
    there = [[number] for number in range(1000)]
    with short_collections():
        assert gc.get_freeze_count() >= len(there)
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before
