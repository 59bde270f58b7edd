"""What other programs answer becomes completions."""

from __future__ import annotations

import pytest

from antiphon.clients.types import FieldError, SamplingParameters
from antiphon.services.generation.engines.samples import Sampled, check_top_p, cut_by_top_p


def sampling(temperature: float, top_k: int | None, top_p: float | None) -> SamplingParameters:
    return SamplingParameters(temperature, top_k, top_p, max_new_tokens=4)


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (sampling(0.7, None, None), [9, 9]),
        (sampling(0.7, 5, None), [5, 5]),
        (sampling(0.7, 50, 1.0), [9, 9]),
        (sampling(0.7, 5, 0.9), [2, 5]),
    ],
    ids=["all", "top_k", "more than there are", "top_p"],
)
def test_the_kept_set_is_what_top_k_leaves_and_of_it_what_top_p_was_told_to_leave(
    asked: SamplingParameters, kept: list[int]
) -> None:
    """L7: an equal of the last kept token that is told too counts no further than top_k."""
    sampled = Sampled(asked, vocabulary_size=9)
    sampled.add(3, -0.5, likeliest=2)
    sampled.add(4, -1.5, likeliest=6)
    assert sampled.token_ids == [3, 4]
    assert sampled.logprobs == [-0.5, -1.5]
    assert sampled.kept_sizes == kept


def test_greedy_and_untold_tokens_are_certain() -> None:
    """The distribution that greedy decoding samples from has one token."""
    greedy = Sampled(sampling(0.0, 5, 0.9), vocabulary_size=9)
    greedy.add(3, -0.5, likeliest=2)
    untold = Sampled.untold([3])
    for sampled in (greedy, untold):
        assert (sampled.token_ids, sampled.logprobs, sampled.kept_sizes) == ([3], [0.0], [1])


def test_a_top_p_that_cuts_needs_a_top_k_that_is_told_whole() -> None:
    """L7: otherwise nobody knows which tokens were kept."""
    for fits in (sampling(0.7, 5, 0.9), sampling(0.0, None, 0.9), sampling(0.7, None, 1.0)):
        check_top_p(fits, 5, "as is told")
    assert not cut_by_top_p(sampling(0.7, None, None))
    for top_k, got in ((None, "none"), (6, "6")):
        with pytest.raises(
            FieldError, match=rf"sampling.top_k: got {got}, wanted at most 5 beside"
        ):
            check_top_p(sampling(0.7, top_k, 0.9), 5, "as is told")
