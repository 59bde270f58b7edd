"""How completions become rows of a forward: packs, places, positions, and who sees whom."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from tests.support.trees import make_sample

from antiphon.clients.types import FieldError
from antiphon.learner.policy.micro_batches import Row, collate, split_rows

CPU = torch.device("cpu")
EOS = 2


def rows(*pairs: tuple[list[int], list[int]]) -> list[Row]:
    return [
        Row(sample.prompt_token_ids, sample.completions[0], 1.0)
        for prompt, tokens in pairs
        for sample in [make_sample(prompt, [(tokens, 1.0)])]
    ]


def test_completions_follow_the_prompt_that_they_share_and_see_it_and_themselves() -> None:
    first, second = rows(([7, 8], [20, 21, EOS]), ([7, 8], [22, EOS]))
    batch = collate([[first, second]], "sampled", CPU)
    assert batch.input_ids.tolist() == [[7, 8, 20, 21, 22]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 2]]
    assert batch.tokens.token_ids.tolist() == [20, 21, EOS, 22, EOS]
    # The prompt's last column predicts the first token of both.
    assert batch.places.tolist() == [1, 2, 3, 1, 4]
    seen = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 0, 0, 1]]
    assert batch.attention_mask.int().tolist() == [[seen]]


def test_padding_comes_last_and_nothing_of_a_row_sees_it() -> None:
    one, two, other = rows(([7, 8], [20, EOS]), ([7, 8], [EOS]), ([5], [21, 22, 23, 24, EOS]))
    batch = collate([[one, two], [other]], "sampled", CPU)
    assert batch.input_ids.tolist() == [[7, 8, 20, 0, 0], [5, 21, 22, 23, 24]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 0], [0, 1, 2, 3, 4]]
    assert batch.places.tolist() == [1, 2, 1, 5, 6, 7, 8, 9]
    seen = batch.attention_mask[0, 0]
    assert not seen[:3, 3:].any()
    assert seen.any(dim=-1).all()  # a softmax over nothing is not a number


def test_completions_alone_need_a_mask_of_columns_only() -> None:
    """L1, L2, L4: what is padding is known by place; ids 0 and EOS count wherever they stand."""
    batch = collate([[row] for row in rows(([0, EOS], [0, EOS]), ([5], [EOS]))], "sampled", CPU)
    assert batch.attention_mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.input_ids.tolist() == [[0, EOS, 0], [5, 0, 0]]
    assert batch.places.tolist() == [1, 2, 3]
    assert batch.tokens.token_ids.tolist() == [0, EOS, EOS]


def test_full_support_takes_the_engines_full_logprobs() -> None:
    (row,) = rows(([7], [20, EOS]))
    row = replace(row, completion=replace(row.completion, full_logprobs=(-4.0, -5.0)))
    assert collate([[row]], "full", CPU).tokens.engine_logprobs.tolist() == [-4.0, -5.0]
    with pytest.raises(FieldError, match="include_full_logprobs"):
        collate([rows(([7], [20, EOS]))], "full", CPU)


def test_an_unknown_support_is_refused() -> None:
    with pytest.raises(FieldError, match="logprob_support"):
        collate([rows(([7], [EOS]))], "kept", CPU)


def test_advantages_and_weights_reach_every_token_of_their_row() -> None:
    three = rows(([7], [20, 21, 22, EOS]), ([7], [EOS]), ([9, 10, 11], [23, 24, EOS]))
    values = zip(three, [0.5, 0.25, 0.125], [1, -1, 2], strict=True)
    one, two, three = (
        replace(row, weight=weight, completion=replace(row.completion, advantage=advantage))
        for row, weight, advantage in values
    )
    tokens = collate([[one, two], [three]], "sampled", CPU).tokens
    assert tokens.weights.tolist() == [0.5] * 4 + [0.25] + [0.125] * 3
    assert tokens.advantages.tolist() == [1.0] * 4 + [-1.0] + [2.0] * 3


@pytest.mark.parametrize("referenced", [True, False])
def test_tokens_part_in_order_with_and_without_a_reference(referenced: bool) -> None:
    made = rows(([7], [20, 21, 22, EOS]), ([7], [EOS]))
    if referenced:
        made = [
            replace(r, completion=replace(r.completion, reference_logprobs=(-1.0,) * r.length))
            for r in made
        ]
    parts = collate([made], "sampled", CPU).tokens.split(2)
    assert [part.token_ids.tolist() for part in parts] == [[20, 21], [22, EOS], [EOS]]
    assert [len(part) for part in parts] == [2, 2, 1]
    assert [len(part.reference_logprobs) for part in parts] == (
        [2, 2, 1] if referenced else [0] * 3
    )


@pytest.mark.parametrize("shared_up_to", [0, sys.maxsize])
def test_micro_batches_hold_every_row_once_within_the_budget(shared_up_to: int) -> None:
    made = rows(*[([1] * (1 + i % 5), [20] * (1 + i % 3)) for i in range(23)])
    batches = split_rows(made, tokens=24, shared_up_to=shared_up_to)
    assert sorted(map(id, made)) == sorted(id(r) for b in batches for pack in b for r in pack)
    for batch in batches:
        assert collate(batch, "sampled", CPU).input_ids.numel() <= 24
        assert all(len({row.prompt_token_ids for row in pack}) == 1 for pack in batch)
    assert len(batches) < 12


def test_only_what_one_prompt_led_to_shares_it_and_only_where_it_may() -> None:
    made = rows(([1, 3], [20, EOS]), ([1, 4], [20, EOS]), ([1, 3], [21, 22, EOS]))
    batches = split_rows(made, tokens=100, shared_up_to=5)
    assert [[len(pack) for pack in batch] for batch in batches] == [[1], [2]]
    (batch,) = split_rows(made, tokens=100, shared_up_to=4)  # the third is 5 long
    assert [len(pack) for pack in batch] == [1, 1, 1]


def test_a_long_prompt_is_repeated_no_more_than_its_completions_cost() -> None:
    """A prompt of 30 in a budget of 8: up to 30 completion columns share it."""
    made = rows(*[([1] * 30, [20] * 11)] * 7)
    packs = [len(pack) for batch in split_rows(made, tokens=8, shared_up_to=99) for pack in batch]
    assert sorted(packs) == [1, 3, 3]


def test_a_row_longer_than_the_budget_goes_alone() -> None:
    batches = split_rows(rows(([1] * 30, [20]), ([1], [20])), tokens=8, shared_up_to=0)
    assert [len(batch) for batch in batches] == [1, 1]


@pytest.mark.parametrize("shared_up_to", [0, 99])
def test_micro_batches_can_be_bounded_by_completions(shared_up_to: int) -> None:
    made = rows(*[([1], [20])] * 5)
    batches = split_rows(made, tokens=10**6, size=2, shared_up_to=shared_up_to)
    assert sorted(sum(map(len, batch)) for batch in batches) == [1, 2, 2]
