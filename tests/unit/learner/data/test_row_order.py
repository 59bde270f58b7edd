"""The order of a dataset's rows: a pure function of seed and epoch."""

from __future__ import annotations

import pytest
from tests.support.row_orders import shuffled_rows, shuffled_stream, split_mix

from antiphon.learner.data.row_order import RowOrder


def test_the_reference_is_split_mix() -> None:
    """The first numbers of SplitMix64 from state 0, as its authors' code prints them."""
    assert [split_mix(n) for n in (1, 2)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_rows_are_sorted_by_their_hash() -> None:
    assert RowOrder(7).permutation(50, epoch=3) == shuffled_rows(50, seed=7, epoch=3)


def test_another_epoch_or_seed_has_another_order_and_the_same_has_the_same() -> None:
    orders = [RowOrder(seed).permutation(20, epoch) for seed in (0, 1) for epoch in (1, 2)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert RowOrder(0).permutation(20, 1) == orders[0]


def test_a_stream_is_drawn_from_its_buffer() -> None:
    """A buffer of three, from which the hash of the step takes."""
    expected = shuffled_stream(8, seed=5, epoch=1, buffer_size=3)
    assert list(RowOrder(5, buffer_size=3).shuffled(range(8), epoch=1)) == expected
    assert sorted(expected) == list(range(8))


@pytest.mark.parametrize("length", [0, 1, 3, 4])
def test_a_stream_shorter_than_the_buffer_loses_nothing(length: int) -> None:
    assert sorted(RowOrder(5, buffer_size=4).shuffled(range(length), 1)) == list(range(length))


def test_a_stream_is_read_no_further_than_the_buffer_needs() -> None:
    stream = iter(range(9))
    next(RowOrder(5, buffer_size=3).shuffled(stream, 1))
    assert next(stream) == 4
