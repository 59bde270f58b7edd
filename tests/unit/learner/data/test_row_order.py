"""The order of a dataset's rows: a pure function of seed and epoch."""

from __future__ import annotations

import pytest

from antiphon.learner.data.row_order import RowOrder
from antiphon.learner.rollout.seeds import stable_hash


def split_mix(state: int) -> int:
    """SplitMix64 in whole numbers, an independent reference."""
    z = state * 0x9E3779B97F4A7C15 % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def test_the_reference_is_split_mix() -> None:
    """The first numbers of SplitMix64 from state 0, as its authors' code prints them."""
    assert [split_mix(n) for n in (1, 2)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_rows_are_sorted_by_their_hash() -> None:
    key = stable_hash("row order", 7, 3)
    expected = sorted(range(50), key=lambda row: split_mix((key + row) % 2**64))
    assert RowOrder(7).permutation(50, epoch=3) == expected


def test_another_epoch_or_seed_has_another_order_and_the_same_has_the_same() -> None:
    orders = [RowOrder(seed).permutation(20, epoch) for seed in (0, 1) for epoch in (1, 2)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert RowOrder(0).permutation(20, 1) == orders[0]


def test_a_stream_is_drawn_from_its_buffer() -> None:
    """Worked out by hand: a buffer of three, from which the hash of the step takes."""
    key = stable_hash("row order", 5, 1)
    left, buffer, expected = list(range(3, 8)), [0, 1, 2], []
    for step in range(8):
        place = split_mix((key + step) % 2**64) % len(buffer)
        expected.append(buffer[place])
        if left:
            buffer[place] = left.pop(0)
        else:
            buffer[place], buffer[-1] = buffer[-1], buffer[place]
            buffer.pop()
    assert list(RowOrder(5, buffer_size=3).shuffled(range(8), epoch=1)) == expected
    assert sorted(expected) == list(range(8))


@pytest.mark.parametrize("length", [0, 1, 3, 4])
def test_a_stream_shorter_than_the_buffer_loses_nothing(length: int) -> None:
    assert sorted(RowOrder(5, buffer_size=4).shuffled(range(length), 1)) == list(range(length))


def test_a_stream_is_read_no_further_than_the_buffer_needs() -> None:
    stream = iter(range(9))
    next(RowOrder(5, buffer_size=3).shuffled(stream, 1))
    assert next(stream) == 4
