"""The selection in two stages, against one over the whole vocabulary."""

from __future__ import annotations

import pytest
import torch

from antiphon.services.common.likeliest import likeliest


@pytest.mark.parametrize("size", [50, 256, 5000, 49152, 50257])
@pytest.mark.parametrize("count", [1, 50, 1024])
def test_the_tokens_are_those_of_a_plain_selection(size: int, count: int) -> None:
    count = min(count, size)
    logits = torch.randn(4, size, generator=torch.Generator().manual_seed(size))
    got = likeliest(logits, count).sort(-1).values
    assert torch.equal(got, logits.topk(count, dim=-1).indices.sort(-1).values)


def test_equals_are_taken_once_each() -> None:
    logits = torch.zeros(2, 5000)
    logits[1, 4990:] = 1.0
    got = likeliest(logits, 40)
    assert all(len(set(row.tolist())) == 40 for row in got)
    assert set(range(4990, 5000)) <= set(got[1].tolist())


def test_a_row_without_sound_numbers_shows_it() -> None:
    logits = torch.zeros(1, 5000)
    logits[0, 77] = torch.nan
    assert 77 in likeliest(logits, 5)[0].tolist()
