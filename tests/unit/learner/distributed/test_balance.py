"""Which completions each rank computes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.learner.arithmetic.samples import TrainedCompletion
from antiphon.learner.distributed.balance import balanced
from antiphon.learner.policy.micro_batches import Row


def row(prompt: int, tokens: int, prompt_length: int = 2) -> Row:
    zeros = (0.0,) * tokens
    completion = TrainedCompletion((7,) * tokens, zeros, (1,) * tokens, 0.0, 0.0)
    return Row((prompt,) * prompt_length, completion, 0.5)


def tokens(share: list[Row]) -> int:
    return sum(len(prompt) for prompt in {r.prompt_token_ids for r in share}) + sum(
        r.length for r in share
    )


def test_completions_of_a_prompt_stay_together() -> None:
    rows = [row(1, 4), row(2, 3), row(1, 2), row(2, 1), row(3, 9), row(4, 5)]
    shares = balanced(rows, 2)
    prompts = [{r.prompt_token_ids for r in share} for share in shares]
    assert not prompts[0] & prompts[1]
    # 11, 8, 7 and 6 tokens: the largest first, each to who has least
    assert sorted(tokens(share) for share in shares) == [15, 17]


def test_a_single_prompt_is_parted_where_ranks_would_idle() -> None:
    rows = [row(1, length) for length in (1, 2, 3, 4)]
    shares = balanced(rows, 4)
    assert sorted(r.length for share in shares for r in share) == [1, 2, 3, 4]
    assert all(len(share) == 1 for share in shares)


def test_equal_completions_are_all_there() -> None:
    rows = [row(1, 3), row(1, 3), row(1, 3)]
    assert sorted(len(share) for share in balanced(rows, 2)) == [1, 2]


def test_ranks_without_work_get_none() -> None:
    assert [len(share) for share in balanced([row(1, 2)], 3)] == [1, 0, 0]


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 30)), min_size=1, max_size=40),
    st.integers(1, 6),
)
def test_every_completion_has_one_rank_in_the_order_in_which_it_came(
    made: list[tuple[int, int]], ranks: int
) -> None:
    rows = [row(prompt, length) for prompt, length in made]
    shares = balanced(rows, ranks)
    places = {id(r): place for place, r in enumerate(rows)}
    found = [[places[id(r)] for r in share] for share in shares]
    assert sorted(place for share in found for place in share) == list(range(len(rows)))
    assert all(share == sorted(share) for share in found)
    groups = {p: sum(n for q, n in made if q == p) + 2 for p, _ in made}
    if len(groups) >= ranks:
        mean = sum(groups.values()) / ranks
        assert max(map(tokens, shares)) <= mean + max(groups.values())
