"""What a model can do is found out by trying it, and changes its cost only, never its numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.support.trees import make_sample
from torch import Tensor, nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from antiphon.learner.policy.forward import Forward
from antiphon.learner.policy.micro_batches import Row, collate, split_rows

VOCABULARY = 32
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
LLAMA_LIKE: dict[str, Any] = {
    **SIZES,
    "intermediate_size": 24,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "initializer_range": 0.5,
}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}


def wrapped() -> nn.Module:
    """A model that no one but its own forward knows, which takes no `logits_to_keep`."""
    inner = GPT2LMHeadModel(GPT2Config(**GPT2, initializer_range=0.5)).eval()

    class Plain(nn.Module):
        def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Any:
            return inner(input_ids, attention_mask=attention_mask, position_ids=position_ids)

    plain = Plain()
    plain.inner = inner
    return plain


def opaque() -> nn.Module:
    """A model that takes any keyword."""
    inner = LlamaForCausalLM(LlamaConfig(**LLAMA_LIKE)).eval()

    class Wrapper(nn.Module):
        def forward(self, **inputs: Any) -> Any:
            return inner(**inputs)

    wrapper = Wrapper()
    wrapper.inner = inner
    return wrapper


def causal_whatever_it_is_told() -> nn.Module:
    """A model that takes a mask and does not look at it."""
    inner = LlamaForCausalLM(LlamaConfig(**LLAMA_LIKE)).eval()

    class Deaf(nn.Module):
        def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Any:
            return inner(input_ids, position_ids=position_ids)

    deaf = Deaf()
    deaf.inner = inner
    return deaf


# What it makes, whether its head is apart, how long a prompt and completion may share.
MODELS: dict[str, tuple[Callable[[], nn.Module], bool, int]] = {
    "llama": (lambda: LlamaForCausalLM(LlamaConfig(**LLAMA_LIKE)), True, sys.maxsize),
    "llama, eager": (
        lambda: LlamaForCausalLM(LlamaConfig(**LLAMA_LIKE, attn_implementation="eager")),
        True,
        sys.maxsize,
    ),
    "qwen3": (lambda: Qwen3ForCausalLM(Qwen3Config(**LLAMA_LIKE)), True, sys.maxsize),
    "neox": (
        lambda: GPTNeoXForCausalLM(
            GPTNeoXConfig(**SIZES, intermediate_size=24, initializer_range=0.3)
        ),
        True,
        sys.maxsize,
    ),
    "gpt2": (lambda: GPT2LMHeadModel(GPT2Config(**GPT2)), True, sys.maxsize),
    "sliding window": (
        lambda: MistralForCausalLM(MistralConfig(**LLAMA_LIKE, sliding_window=7)),
        True,
        7,
    ),
    "soft cap": (
        lambda: Gemma2ForCausalLM(
            Gemma2Config(**LLAMA_LIKE, sliding_window=64, attn_implementation="eager")
        ),
        False,
        64,
    ),
    "alibi": (
        lambda: BloomForCausalLM(
            BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=2)
        ),
        True,
        0,
    ),
    "recurrent": (
        lambda: MambaForCausalLM(
            MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, state_size=4)
        ),
        True,
        0,
    ),
    "wrapped": (wrapped, False, sys.maxsize),
    "opaque": (opaque, False, sys.maxsize),
    "deaf": (causal_whatever_it_is_told, False, 0),
}
GROUPS = {
    (7, 3, 9): [(20, 21, 22, 2), (2,), (23, 2)],
    (5,): [(24, 25, 26, 27, 28, 2), (29, 29, 2)],
    (1, 2, 3, 4, 6, 8): [(0, 0, 2), (30, 31, 2)],
}


def rows() -> list[Row]:
    return [
        Row(prompt, make_sample(prompt, [(tokens, 1.0)]).completions[0], 1.0)
        for prompt, completions in GROUPS.items()
        for tokens in completions
    ]


def loss(logits: Tensor, token_ids: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, token_ids[:, None]).sum()


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_each_completion_alone(name: str, lean: bool) -> None:
    """To 1e-5 of the largest, whatever the model can do."""
    make, head_apart, shared_up_to = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    forward = Forward(model)
    assert (forward.head is not None, forward.shared_up_to) == (head_apart, shared_up_to)
    batches = split_rows(rows(), tokens=100, shared_up_to=forward.shared_up_to)
    assert any(len(pack) > 1 for batch in batches for pack in batch) == (shared_up_to > 0)
    total = torch.zeros(())
    with forward.lean() if lean else nullcontext():
        for packs in batches:
            batch = collate(packs, "sampled", torch.device("cpu"))
            logits = forward.logits(forward.states(batch))
            assert logits.shape == (len(batch.tokens), VOCABULARY)
            total = total + loss(logits, batch.tokens.token_ids)
        total.backward()
    got = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is None or not gradient.is_sparse for gradient in got)
    model.zero_grad()
    alone = torch.zeros(())
    for row in rows():
        ids = torch.tensor([row.prompt_token_ids + row.completion.token_ids])
        inputs = {"input_ids": ids}
        if name in ("wrapped", "deaf"):
            inputs["attention_mask"] = torch.ones_like(ids)
            inputs["position_ids"] = torch.arange(ids.shape[1])[None]
        logits = model(**inputs).logits[0, row.prompt_length - 1 : -1]
        alone = alone + loss(logits, ids[0, row.prompt_length :])
    wanted = torch.autograd.grad(alone, list(model.parameters()), allow_unused=True)
    assert total.item() == pytest.approx(alone.item(), rel=1e-5)
    largest = max(g.abs().max().item() for g in wanted if g is not None)
    for one, other in zip(got, wanted, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other, atol=1e-5 * largest, rtol=0)


@pytest.mark.parametrize("seed", range(4))
def test_a_mask_that_is_not_looked_at_is_noticed_in_small_weights_too(seed: int) -> None:
    """At the deviation that models start with, attention changes states by little."""
    torch.manual_seed(seed)
    deaf = causal_whatever_it_is_told()
    for parameter in deaf.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
    assert Forward(deaf).shared_up_to == 0
    assert Forward(deaf.inner).shared_up_to == sys.maxsize


def test_trying_a_model_leaves_it_and_the_random_numbers_as_they_were() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**LLAMA_LIKE)).eval()
    before = [p.clone() for p in model.parameters()]
    state = torch.random.get_rng_state()
    Forward(model)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert "forward" not in vars(model.lm_head)
    for parameter, was in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, was)
        assert parameter.grad is None


def test_the_head_is_computed_at_completion_tokens_alone() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**LLAMA_LIKE)).eval()
    forward = Forward(model)
    seen: list[tuple[int, ...]] = []
    hook = model.lm_head.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape))
    (batch,) = split_rows(rows(), tokens=100, shared_up_to=forward.shared_up_to)
    made = collate(batch, "sampled", torch.device("cpu"))
    states = forward.states(made)
    assert states.shape == (22, 16)
    seen.clear()
    assert forward.logits(states[:5]).shape == (5, VOCABULARY)
    hook.remove()
    assert seen == [(5, 16)]
