"""Rows that leave and join a batch, against a forward without cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from antiphon.clients.types import SamplingParameters, WeightsSpan
from antiphon.services.common.models import load_model
from antiphon.services.common.sampling import token_logprobs
from antiphon.services.generation.batch import Batch, Row
from antiphon.services.generation.decoder import Decoder

Folders = Callable[..., Path]
SAMPLING = SamplingParameters(0.9, 20, 0.95, max_new_tokens=25)
LONG = tuple(5 + i % 20 for i in range(30))


def rows_of(*prompts: tuple[tuple[int, ...], int]) -> list[Row]:
    return [
        Row(index, sample, prompt, 100 * index + sample)
        for index, (prompt, samples) in enumerate(prompts)
        for sample in range(samples)
    ]


def decode(
    model: PreTrainedModel, rows: Sequence[Row], ends: frozenset[int], size: int
) -> list[tuple[int, int, int]]:
    """Decodes all; gives the rows under way, cache places and prompt tokens of each admission."""
    batch = Batch(Decoder(model), rows, SAMPLING, ends, full=False, size=size)
    admitted = []
    while batch.unfinished:
        if batch.rows_are_due:
            computed = batch.admit(3)
            admitted.append((len(batch.rows), batch.cache_tokens, computed))
        batch.sample()
        if batch.rows:
            batch.advance()
    return admitted


def check(model: PreTrainedModel, rows: Sequence[Row]) -> None:
    for row in rows:
        assert row.finish_reason is not None
        assert row.spans == [WeightsSpan(0, 3)]
        ids = torch.tensor([[*row.prompt, *row.token_ids]])
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits[0, len(row.prompt) - 1 : -1]
        said = token_logprobs(
            logits, torch.tensor(row.token_ids), torch.tensor(row.kept_sizes), 0.9
        )
        assert not said.forced.any()
        assert row.logprobs == pytest.approx(said.logprobs.tolist(), abs=1e-4)


def test_a_short_prompt_joins_after_the_long_one_it_was_computed_with_has_left(
    tiny_folders: Folders,
) -> None:
    model = load_model(tiny_folders(seed=0), dtype=torch.float32)
    first = rows_of((LONG, 1))
    decode(model, first, frozenset(), 1)
    ends = frozenset(first[0].token_ids[:1])
    rows = rows_of((LONG, 1), ((5, 6, 7), 6))
    admitted = decode(model, rows, ends, 4)
    assert len(rows[0].token_ids) == 1
    assert admitted[0] == (4, 4 * 30, 33)
    assert admitted[1][1] < 4 * 30
    assert all(computed == 0 for _, _, computed in admitted[1:])
    check(model, rows)


def test_rows_of_every_length_leave_and_join(tiny_folders: Folders) -> None:
    """More than the attention's block of 512 columns is masked for the short ones."""
    model = load_model(tiny_folders(seed=0, context=2048), dtype=torch.float32)
    long = tuple(5 + i % 24 for i in range(700))
    rows = rows_of((LONG, 7), ((9,), 5), (long, 2), ((6, 7, 8), 6), (LONG, 2))
    admitted = decode(model, rows, frozenset({3, 11, 12}), 6)
    assert len(admitted) > 3
    assert sum(computed for _, _, computed in admitted) == 700 + 30 + 3 + 1
    check(model, rows)


def test_admissions_depend_on_the_rows_alone(tiny_folders: Folders) -> None:
    model = load_model(tiny_folders(seed=0), dtype=torch.float32)
    runs = []
    for _ in range(2):
        rows = rows_of((LONG, 5), ((5, 6), 9))
        decode(model, rows, frozenset({3, 11, 12}), 4)
        runs.append([(row.token_ids, row.logprobs) for row in rows])
    assert runs[0] == runs[1]
