"""Chunks are cut once, of whole prompts in tree order, and each completion is delivered once."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.learner.rollout.work_queue import chunk_ranges
from antiphon.learner.weights.replicas import Replica


def replicas(count: int, rows: int = 0) -> list[Replica]:
    nobody: Any = None
    return [Replica(f"a:{number}", nobody, batch_rows=rows) for number in range(count)]


@pytest.mark.parametrize(
    ("count", "asked", "expected"),
    [
        (5, 2, [range(0, 3), range(3, 5)]),
        (4, 2, [range(0, 2), range(2, 4)]),
        (1, 3, [range(0, 1)]),
        (7, 3, [range(0, 3), range(3, 5), range(5, 7)]),
    ],
)
def test_chunks_are_contiguous_and_even_one_for_each_replica(
    count: int, asked: int, expected: list[range]
) -> None:
    assert chunk_ranges(count, 4, replicas(asked)) == expected


@pytest.mark.parametrize("rows", [0, 4, 64])
def test_one_replica_gets_the_whole_turn_as_one_batch(rows: int) -> None:
    """Promised: at staleness 0, what is sampled is the same bit for bit."""
    assert chunk_ranges(1000, 4, replicas(1, rows)) == [range(1000)]


@pytest.mark.parametrize(
    ("count", "samples", "rows", "sizes"),
    [
        (16, 4, 8, [2] * 8),  # 8 prompts each, of which 2 fit
        (10, 4, 8, [2, 2, 2, 2, 1, 1]),
        (6, 4, 16, [3, 3]),  # a share fits
        (4, 16, 8, [1, 1, 1, 1]),  # no prompt fits: never less than one
    ],
)
def test_a_chunk_is_what_a_replica_computes_at_once(
    count: int, samples: int, rows: int, sizes: list[int]
) -> None:
    ranges = chunk_ranges(count, samples, replicas(2, rows))
    assert [len(places) for places in ranges] == sizes
    assert [place for places in ranges for place in places] == list(range(count))


def test_one_replica_that_others_may_join_gets_what_it_computes_at_once() -> None:
    assert len(chunk_ranges(16, 4, replicas(1, 8), elastic=True)) == 8
    assert len(chunk_ranges(16, 4, replicas(1, 0), elastic=True)) == 1
