"""Attention in blocks against torch's with a mask."""

from __future__ import annotations

import pytest
import torch
from tests.support.policies import make_model
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import AttentionInterface

from antiphon.learner.policy.shared_attention import Layout, SharedAttention

LAYOUTS: dict[str, Layout] = {
    "alike": [(3, 4, 4, 4)],
    "uneven, and padding": [(3, 1, 4, 4, 0, 2), (5, 2)],
    "prompts alone": [(3,), (2, 0)],
}


def mask_of(layout: Layout, columns: int) -> Tensor:
    """Which keys each query sees [B, 1, S, S], token by token; padding sees itself."""
    seen = torch.eye(columns, dtype=torch.bool).repeat(len(layout), 1, 1)
    for b, (prompt, *completions) in enumerate(layout):
        parts = [0] * prompt + [k for k, n in enumerate(completions, 1) for _ in range(n)]
        for query, own in enumerate(parts):
            for key, other in enumerate(parts[: query + 1]):
                seen[b, query, key] = other in (0, own)
    return seen[:, None]


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("name", LAYOUTS)
def test_values_and_gradients_are_those_of_a_mask(name: str, key_heads: int) -> None:
    layout = LAYOUTS[name]
    columns = max(map(sum, layout))
    torch.manual_seed(0)
    wide = torch.randn(len(layout), columns, 4 * 8, requires_grad=True)
    narrow = torch.randn(2, len(layout), columns, key_heads * 8, requires_grad=True)
    query, key, value = (
        x.unflatten(-1, (-1, 8)).transpose(1, 2) for x in (wide, narrow[0], narrow[1])
    )
    attend = AttentionInterface()["antiphon_shared_prompts"]
    got, _ = attend(None, query, key, value, None, scaling=0.3, shared=layout)
    wanted = F.scaled_dot_product_attention(
        query,
        *(x.repeat_interleave(4 // key_heads, dim=1) for x in (key, value)),
        attn_mask=mask_of(layout, columns),
        scale=0.3,
    ).transpose(1, 2)
    weights = torch.randn_like(wanted)
    for b, lengths in enumerate(layout):
        weights[b, sum(lengths) :] = 0
        end = sum(lengths)
        torch.testing.assert_close(got[b, :end], wanted[b, :end], rtol=1e-5, atol=1e-6)
        assert torch.equal(got[b, end:], torch.zeros_like(got[b, end:]))
    found = torch.autograd.grad((got * weights).sum(), [wide, narrow])
    expected = torch.autograd.grad((wanted * weights).sum(), [wide, narrow])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "more", [{"softcap": 5.0}, {"s_aux": 1.0}, {"position_bias": 1.0}, {"is_causal": False}]
)
def test_attention_of_another_kind_is_refused(more: dict[str, object]) -> None:
    attend = AttentionInterface()["antiphon_shared_prompts"]
    states = torch.zeros(1, 1, 3, 8)
    with pytest.raises(ValueError, match="attention in blocks"):
        attend(None, states, states, states, None, shared=[(1, 2)], **more)


def test_a_model_s_config_stays_as_it_is_for_whoever_shares_it() -> None:
    model = make_model().eval()
    shared = SharedAttention(model)
    assert shared
    config = model.config
    with shared.in_blocks():
        own = model.model.layers[0].self_attn.config
        assert own._attn_implementation == "antiphon_shared_prompts"
        assert model.config is config
        assert config._attn_implementation == "sdpa"
    assert model.model.layers[0].self_attn.config is config


def test_without_a_layout_it_is_the_usual_attention() -> None:
    model = make_model().eval()
    ids = torch.tensor([[5, 6, 7]])
    wanted = model(input_ids=ids, use_cache=False).logits
    with SharedAttention(model).in_blocks():
        assert torch.equal(model(input_ids=ids, use_cache=False).logits, wanted)


def test_models_on_other_terms_have_none() -> None:
    assert not SharedAttention(make_model(dtype=torch.bfloat16))
