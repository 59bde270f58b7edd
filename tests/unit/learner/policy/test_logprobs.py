from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.trees import make_sample
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from antiphon.learner.policy.forward import Forward
from antiphon.learner.policy.logprobs import (
    batch_logprobs,
    needs_whole_logits,
    parts_of,
    plain_logprobs,
)
from antiphon.learner.policy.micro_batches import Row, collate, split_rows

EOS = 2
SMALL, LARGE = 32, 256
CPU = torch.device("cpu")


def make_model(vocabulary: int) -> nn.Module:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.5,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def rows(*pairs: tuple[list[int], list[int]], kept: int) -> list[Row]:
    return [
        Row(sample.prompt_token_ids, sample.completions[0], 1.0)
        for prompt, tokens in pairs
        for sample in [make_sample(prompt, [(tokens, 1.0)], kept_sizes=[[kept] * len(tokens)])]
    ]


def logprobs(model: nn.Module, made: list[Row], **options: Any) -> list[Tensor]:
    """Log-probabilities of each row, in the order given."""
    chosen = {"temperature": 1.0, "support": "sampled", **options}
    forward = Forward(model)
    found: dict[int, Tensor] = {}
    for packs in split_rows(made, tokens=100, shared_up_to=forward.shared_up_to):
        batch = collate(packs, chosen["support"], CPU)
        flat = batch_logprobs(forward, batch, **chosen).logprobs
        ordered = [row for pack in packs for row in pack]
        parts = flat.split([row.length for row in ordered])
        found |= {id(row): part for row, part in zip(ordered, parts, strict=True)}
    return [found[id(row)] for row in made]


def reference(model: nn.Module, row: Row, *, temperature: float = 1.0, kept: int) -> Tensor:
    """One row without padding; each position's kept set by a sort."""
    ids = torch.tensor([row.prompt_token_ids + row.completion.token_ids])
    logits = model(input_ids=ids).logits[0]
    values = []
    for c, token in enumerate(row.completion.token_ids):
        scaled = logits[row.prompt_length + c - 1] / temperature
        best = scaled.argsort(descending=True)[:kept].tolist()
        if token not in best:
            best[-1] = token
        values.append(scaled[token] - torch.stack([scaled[v] for v in best]).logsumexp(0))
    return torch.stack(values)


MIXED = [
    ([7], [20, 21, 22, EOS]),
    ([3, 4, 5, 6, 8], [EOS]),
    ([9, 10, 11], [23, 24, EOS]),
    ([7], [25, EOS]),
]
CASES = [
    (SMALL, 1.0, SMALL),
    (SMALL, 0.6, SMALL),
    (SMALL, 0.6, 5),
    (LARGE, 0.6, 5),  # few of many: the gradient is taken at kept tokens alone
]


@pytest.mark.parametrize(("vocabulary", "temperature", "kept"), CASES)
def test_rows_of_a_batch_and_their_gradients_equal_each_row_alone(
    vocabulary: int, temperature: float, kept: int
) -> None:
    """L7: the same distribution on both sides, temperature dividing the logits."""
    model = make_model(vocabulary)
    made = rows(*MIXED, kept=kept)
    got = logprobs(model, made, temperature=temperature)
    wanted = [reference(model, row, temperature=temperature, kept=kept) for row in made]
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)
    together, alone = (
        torch.autograd.grad(torch.cat(values).sum(), list(model.parameters()))
        for values in (got, wanted)
    )
    largest = max(gradient.abs().max().item() for gradient in alone)
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 * largest, rtol=0)


@pytest.mark.parametrize(("vocabulary", "whole"), [(SMALL, True), (LARGE, False)])
def test_whole_logits_get_a_gradient_only_where_many_are_kept(vocabulary: int, whole: bool) -> None:
    forward = Forward(make_model(vocabulary))
    tokens = collate([rows(*MIXED[:1], kept=5)], "sampled", CPU).tokens
    assert needs_whole_logits(forward, tokens, "sampled") == whole
    assert needs_whole_logits(forward, tokens, "full")


def test_the_end_token_is_the_last_place_with_a_gradient() -> None:
    """L1: of [20, EOS, padding, padding] exactly 20 and EOS train."""
    model = make_model(SMALL)
    forward = Forward(model)
    one, other = rows(([7, 8], [20, EOS]), ([9, 8], [20, 21, 22, EOS]), kept=SMALL)
    batch = collate([[one], [other]], "sampled", CPU)
    caught: list[Tensor] = []
    hook = model.model.register_forward_hook(
        lambda *given: (
            caught.append(given[2].last_hidden_state) or given[2].last_hidden_state.retain_grad()
        )
    )
    batch_logprobs(forward, batch, temperature=1.0, support="sampled").logprobs.sum().backward()
    hook.remove()
    (hidden,) = caught
    assert hidden.grad is not None
    trained = hidden.grad.abs().sum(dim=-1) > 0
    assert trained.tolist() == [
        [False, True, True, False, False],
        [False, True, True, True, True],
    ]


def test_a_completion_of_the_end_token_alone_trains() -> None:
    """L1, L16: [EOS]."""
    model = make_model(SMALL)
    (row,) = rows(([7, 8], [EOS]), kept=SMALL)
    (got,) = logprobs(model, [row])
    torch.testing.assert_close(got, reference(model, row, kept=SMALL))
    assert got.shape == (1,)
    assert got.requires_grad


def test_end_and_filler_tokens_inside_a_prompt_are_prompt() -> None:
    """L4, L2: place tells padding from tokens, so ids 0 and EOS count wherever they stand."""
    model = make_model(SMALL)
    made = rows(([0, EOS, 7, 0, EOS], [20, 0, EOS]), ([5], [0, EOS, EOS, 0, EOS]), kept=SMALL)
    for row, got in zip(made, logprobs(model, made), strict=True):
        torch.testing.assert_close(got, reference(model, row, kept=SMALL), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("vocabulary", [SMALL, LARGE])
def test_the_sampled_token_is_always_in_the_kept_set(vocabulary: int) -> None:
    forward = Forward(make_model(vocabulary))
    batch = collate([rows(([7], [20, EOS]), kept=1)], "sampled", CPU)
    best = forward.logits(forward.states(batch)).argmax(dim=-1)
    got = batch_logprobs(forward, batch, temperature=1.0, support="sampled")
    assert got.forced.tolist() == (best != torch.tensor([20, EOS])).tolist()
    assert got.logprobs.tolist() == pytest.approx([0.0, 0.0])


def test_full_support_takes_the_whole_softmax_whatever_was_kept() -> None:
    model = make_model(LARGE)
    (row,) = rows(([7], [20, EOS]), kept=3)
    row = replace(row, completion=replace(row.completion, full_logprobs=(-4.0, -5.0)))
    (got,) = logprobs(model, [row], temperature=0.6, support="full")
    torch.testing.assert_close(got, reference(model, row, temperature=0.6, kept=LARGE))


def test_whole_logits_are_made_of_some_tokens_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.learner.policy.logprobs._LOGITS", 3 * SMALL)
    model = make_model(SMALL)
    forward, made = Forward(model), rows(*MIXED, kept=SMALL)
    batch = collate([[row] for row in made], "sampled", CPU)
    states = forward.states(batch)
    parts = list(parts_of(forward, states, batch.tokens, whole_logits=True))
    assert [len(tokens) for _, tokens in parts] == [3, 3, 3, 1]
    assert torch.equal(torch.cat([part for part, _ in parts]), states)
    (whole,) = parts_of(forward, states, batch.tokens, whole_logits=False)
    assert len(whole[1]) == 10
    wanted = [tuple(reference(model, row, kept=SMALL).tolist()) for row in made]
    got = plain_logprobs(forward, made, CPU, tokens=100)
    for one, other in zip(got, wanted, strict=True):
        assert one == pytest.approx(other, abs=2e-5)
