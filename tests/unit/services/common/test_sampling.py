"""The sampling distribution against plain arithmetic on small vocabularies."""

from __future__ import annotations

import math

import pytest
import torch

from antiphon.clients.types import SamplingParameters
from antiphon.services.common.sampling import (
    full_logprobs,
    sample,
    seeds_tensor,
    token_logprobs,
    uniform,
)


def parameters(
    temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> SamplingParameters:
    return SamplingParameters(temperature, top_k, top_p, max_new_tokens=8)


def kept_by_hand(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None
) -> dict[int, float]:
    """Token → probability, straight from the definition."""
    scaled = {i: value / temperature for i, value in enumerate(logits)}
    order = sorted(scaled, key=lambda i: (-scaled[i], i))
    if top_k is not None:
        order = order[:top_k]
    total = sum(math.exp(scaled[i]) for i in order)
    kept, mass = [], 0.0
    for i in order:
        kept.append(i)
        mass += math.exp(scaled[i]) / total
        if top_p is not None and mass >= top_p:
            break
    total = sum(math.exp(scaled[i]) for i in kept)
    return {i: math.exp(scaled[i]) / total for i in kept}


SETTINGS = [
    (1.0, None, None),
    (0.6, None, None),
    (0.6, 3, None),
    (0.6, None, 0.6),
    (0.6, 50, 0.6),
    (1.7, 4, 0.75),
    (0.05, 5, 0.9),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
def test_draws_logprobs_and_sizes_are_those_of_the_renormalised_kept_set(
    temperature: float, top_k: int | None, top_p: float | None
) -> None:
    logits = [0.3, 2.0, -1.0, 1.5, 1.9, -0.5, 0.0]
    wanted = kept_by_hand(logits, temperature, top_k, top_p)
    count = 4000
    grid = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    drawn = sample(
        torch.tensor(logits).repeat(count, 1), parameters(temperature, top_k, top_p), grid
    )
    shares = torch.bincount(drawn.ids, minlength=len(logits)) / count
    for token in range(len(logits)):
        assert float(shares[token]) == pytest.approx(wanted.get(token, 0.0), abs=2 / count)
    assert drawn.kept_sizes.tolist() == [len(wanted)] * count
    by_hand = [math.log(wanted[token]) for token in drawn.ids.tolist()]
    assert drawn.logprobs.tolist() == pytest.approx(by_hand, abs=1e-5)


def test_none_turns_top_k_and_top_p_off_so_every_token_of_a_wide_vocabulary_can_be_drawn() -> None:
    """L11: None means off; no hidden default of 50 stays behind."""
    size = 200
    grid = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    drawn = sample(torch.zeros(size, size), parameters(), grid)
    assert sorted(drawn.ids.tolist()) == list(range(size))
    assert set(drawn.kept_sizes.tolist()) == {size}
    drawn = sample(torch.zeros(size, size), parameters(top_p=0.4975), grid)
    assert len(set(drawn.ids.tolist())) == size // 2


def test_top_p_alone_finds_a_nucleus_wider_than_its_first_guess() -> None:
    logits = torch.zeros(2, 5000)
    logits[1, 4321] = 30.0
    drawn = sample(logits, parameters(top_p=0.8999), torch.tensor([0.999, 0.999]).double())
    assert drawn.kept_sizes.tolist() == [4500, 1]
    assert drawn.ids[1] == 4321


def test_temperature_zero_is_greedy_with_certainty_whatever_the_uniform_number() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, -1.0, 0.0]])
    drawn = sample(logits, parameters(0.0, 2, 0.1), torch.tensor([0.999, 0.0]).double(), full=True)
    assert drawn.ids.tolist() == [1, 0]
    assert drawn.logprobs.tolist() == [0.0, 0.0]
    assert drawn.kept_sizes.tolist() == [1, 1]
    assert drawn.full_logprobs is None
    assert drawn.full_logprobs_temperature_1 is not None
    wanted = math.log(math.e**3 / (1 + math.e**3 + math.e))
    assert float(drawn.full_logprobs_temperature_1[0]) == pytest.approx(wanted, abs=1e-6)


def test_a_row_is_drawn_alike_alone_and_among_others() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 100)
    uniforms = uniform(seeds_tensor([5, 6, 7, 8, 9, 10]), torch.zeros(6, dtype=torch.int64))
    for settings in (parameters(0.7, 20, 0.8), parameters(0.7), parameters(0.7, None, 0.8)):
        together = sample(logits, settings, uniforms)
        for row in range(6):
            alone = sample(logits[row : row + 1], settings, uniforms[row : row + 1])
            assert alone.ids[0] == together.ids[row]
            assert alone.kept_sizes[0] == together.kept_sizes[row]


def test_uniform_numbers_depend_on_seed_and_position_only_and_look_uniform() -> None:
    seeds = seeds_tensor([0, 1, 2**63, 2**64 - 1])
    first = uniform(seeds, torch.zeros(4, dtype=torch.int64))
    assert len(set(first.tolist())) == 4
    assert first.tolist() == uniform(seeds, torch.zeros(4, dtype=torch.int64)).tolist()
    assert uniform(seeds[2:3], torch.tensor([0]))[0] == first[2]
    for fixed_seed in (True, False):
        span = torch.arange(20000)
        constant = torch.full_like(span, 7)
        numbers = uniform(constant, span) if fixed_seed else uniform(span, constant)
        assert float(numbers.min()) >= 0.0
        assert float(numbers.max()) < 1.0
        counts = torch.histc(numbers.float(), bins=20, min=0, max=1)
        assert float((counts - 1000).abs().max()) < 150
        pairs = torch.stack([numbers[:-1], numbers[1:]])
        assert abs(float(torch.corrcoef(pairs)[0, 1])) < 0.03


def test_uniform_is_splitmix64_in_python_integers() -> None:
    mask = 2**64 - 1

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    golden = 0x9E3779B97F4A7C15
    seeds, positions = [0, 12345, 2**63 + 99, mask], [0, 1, 17, 4095]
    wanted = [
        (mix((mix((seed + golden) & mask) + (position + 1) * golden) & mask) >> 11) / 2**53
        for seed, position in zip(seeds, positions, strict=True)
    ]
    assert uniform(seeds_tensor(seeds), torch.tensor(positions)).tolist() == wanted


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
def test_learner_and_engine_agree_on_the_logprob_of_what_was_sampled(
    temperature: float, top_k: int | None, top_p: float | None
) -> None:
    """L7: the same distribution on both sides, so the ratio of an unchanged policy is 1."""
    torch.manual_seed(1)
    logits = torch.randn(64, 300) * 3
    uniforms = uniform(torch.arange(64), torch.zeros(64, dtype=torch.int64))
    drawn = sample(logits, parameters(temperature, top_k, top_p), uniforms)
    again = token_logprobs(logits, drawn.ids, drawn.kept_sizes, temperature)
    assert not bool(again.forced.any())
    torch.testing.assert_close(again.logprobs, drawn.logprobs, atol=1e-5, rtol=0)


def test_a_sampled_token_outside_of_the_rebuilt_set_takes_the_last_place_and_counts_as_forced() -> (
    None
):
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0], [3.0, 2.0, 1.0, 0.0]], requires_grad=True)
    got = token_logprobs(logits, torch.tensor([3, 1]), torch.tensor([2, 2]), 0.5)
    assert got.forced.tolist() == [True, False]
    wanted = [0.0 - math.log(math.exp(6) + 1), 4.0 - math.log(math.exp(6) + math.exp(4))]
    assert got.logprobs.tolist() == pytest.approx(wanted, abs=1e-5)
    got.logprobs.sum().backward()
    assert logits.grad is not None
    assert (logits.grad != 0).tolist() == [[True, False, False, True], [True, True, False, False]]


def test_equal_logits_are_interchangeable_and_force_nothing() -> None:
    got = token_logprobs(torch.zeros(4, 4), torch.arange(4), torch.full((4,), 2), 1.0)
    assert not bool(got.forced.any())
    assert got.logprobs.tolist() == pytest.approx([-math.log(2)] * 4)


def test_gradient_of_a_logprob_is_one_hot_minus_kept_probabilities_over_temperature() -> None:
    temperature, logits = 0.6, torch.tensor([[0.5, 1.5, -0.2, 1.0]], requires_grad=True)
    for size in (3, 4):
        got = token_logprobs(logits, torch.tensor([3]), torch.tensor([size]), temperature)
        (gradient,) = torch.autograd.grad(got.logprobs.sum(), logits)
        kept = kept_by_hand(logits[0].tolist(), temperature, size, None)
        wanted = [((i == 3) - kept.get(i, 0.0)) / temperature for i in range(4)]
        assert gradient[0].tolist() == pytest.approx(wanted, abs=1e-6)


def test_token_logprobs_keep_the_shape_and_mix_whole_and_partial_sets() -> None:
    torch.manual_seed(2)
    logits = torch.randn(2, 3, 10)
    ids = torch.randint(10, (2, 3))
    kept = torch.tensor([[10, 10, 10], [10, 9, 10]])
    got = token_logprobs(logits, ids, kept, 0.8)
    whole = full_logprobs(logits, ids, 0.8)
    assert got.logprobs.shape == (2, 3)
    same = (got.logprobs == whole).tolist()
    assert same[0] == [True] * 3
    assert not same[1][1]
    by_hand = torch.log_softmax(logits / 0.8, -1).gather(-1, ids[..., None]).squeeze(-1)
    torch.testing.assert_close(whole, by_hand)


def test_entropy_is_that_of_the_kept_set() -> None:
    logits = torch.tensor([[0.0, math.log(3.0), -9.0], [0.0, 0.0, 0.0]], requires_grad=True)
    got = token_logprobs(logits, torch.tensor([0, 2]), torch.tensor([2, 3]), 1.0)
    by_hand = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    assert got.entropy.tolist() == pytest.approx([by_hand, math.log(3)], abs=1e-6)
    assert not got.entropy.requires_grad
    # At temperature 0.5 the odds are 9 to 1; a set of one token has none.
    colder = token_logprobs(logits, torch.tensor([0, 2]), torch.tensor([2, 1]), 0.5)
    by_hand = 0.1 * math.log(10) + 0.9 * math.log(10 / 9)
    assert colder.entropy.tolist() == pytest.approx([by_hand, 0.0], abs=1e-6)


def test_full_logprobs_come_at_the_sampling_temperature_and_at_one() -> None:
    torch.manual_seed(3)
    logits = torch.randn(5, 12)
    drawn = sample(logits, parameters(0.5, 2), torch.rand(5).double(), full=True)
    at = drawn.ids[:, None]
    assert drawn.full_logprobs is not None
    assert drawn.full_logprobs_temperature_1 is not None
    torch.testing.assert_close(
        drawn.full_logprobs, torch.log_softmax(logits / 0.5, -1).gather(-1, at).squeeze(-1)
    )
    torch.testing.assert_close(
        drawn.full_logprobs_temperature_1, torch.log_softmax(logits, -1).gather(-1, at).squeeze(-1)
    )
    assert sample(logits, parameters(0.5, 2), torch.rand(5).double()).full_logprobs is None
