"""Which prefixes are computed together."""

from __future__ import annotations

import pytest

from antiphon.services.generation.prefill import groups


@pytest.mark.parametrize(
    ("lengths", "wanted"),
    [
        ([], []),
        ([7], [[0]]),
        ([3, 9, 5], [[1, 2, 0]]),
        # 200 - 30 padded tokens cost more than a forward of their own.
        ([30, 200, 32], [[1], [2, 0]]),
        # The padding of a group adds up: 30 + 30 is worth it, 30 + 30 + 30 is not.
        ([100, 70, 70, 70], [[0, 1, 2], [3]]),
        # No more than 4096 tokens at once, but any prefix alone.
        ([1500, 1500, 1500], [[0, 1], [2]]),
        ([5000, 5000], [[0], [1]]),
    ],
)
def test_prefixes_are_grouped_longest_first_with_little_padding(
    lengths: list[int], wanted: list[list[int]]
) -> None:
    assert groups(lengths) == wanted
