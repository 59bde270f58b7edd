"""Logits of kept tokens and their gradients, against whole logits and autograd."""

from __future__ import annotations

import pytest
import torch

from antiphon.learner.policy.kept_head import is_worth_it, kept_logits
from antiphon.services.common.sampling import kept_logprobs, token_logprobs

K, H, V = 7, 6, 96


@pytest.mark.parametrize("sizes", [(1,) * K, (3,) * K, (1, 2, 3, 1, 3, 2, 1)])
@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize("frozen", [None, "states", "weight"])
def test_logprobs_entropies_and_gradients_are_those_of_whole_logits(
    sizes: tuple[int, ...], rows: int, frozen: str | None
) -> None:
    torch.manual_seed(0)
    states = torch.randn(K, H, requires_grad=frozen != "states")
    weight = torch.randn(V, H, requires_grad=frozen != "weight")
    kept = torch.tensor(sizes)
    ids = (states @ weight.T).detach().argmax(dim=-1)  # in the set, three of them forced
    ids[2:5] = torch.tensor([90, 90, 91])
    values, sets = kept_logits(states, weight, ids, kept, rows=rows)
    got = kept_logprobs(values, sets, 0.6)
    wanted = token_logprobs(states @ weight.T, ids, kept, 0.6)
    assert got.forced.tolist() == wanted.forced.tolist()
    torch.testing.assert_close(got.logprobs, wanted.logprobs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got.entropy, wanted.entropy, atol=1e-5, rtol=1e-5)
    given = [t for t in (states, weight) if t.requires_grad]
    scale = torch.linspace(-1, 1, K)
    one = torch.autograd.grad((got.logprobs * scale).sum(), given)
    other = torch.autograd.grad((wanted.logprobs * scale).sum(), given)
    assert any(gradient.abs().max() > 0 for gradient in other) == (max(sizes) > 1)
    for left, right in zip(one, other, strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)


def test_only_sets_that_are_small_next_to_the_vocabulary_are_worth_it() -> None:
    assert is_worth_it(torch.tensor([1, 3]), V)
    assert not is_worth_it(torch.tensor([1, 4]), V)
