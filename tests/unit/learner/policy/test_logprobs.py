from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.trees import make_sample
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from antiphon.clients.types import FieldError
from antiphon.learner.policy.logprobs import (
    Row,
    batch_logprobs,
    collate,
    completion_logits,
    split_rows,
)

VOCABULARY = 32
EOS = 2


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.5,
        attn_implementation=request.param,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def rows(*pairs: tuple[list[int], list[int]], kept: int = VOCABULARY) -> list[Row]:
    return [
        Row(sample.prompt_token_ids, sample.completions[0], 1.0)
        for prompt, tokens in pairs
        for sample in [make_sample(prompt, [(tokens, 1.0)], kept_sizes=[[kept] * len(tokens)])]
    ]


def logprobs(model: nn.Module, batch: list[Row], **options: Any) -> list[Tensor]:
    """Log-probabilities of each row, in the order given."""
    chosen = {"temperature": 1.0, "support": "sampled", **options}
    collated = collate(batch, chosen["support"], torch.device("cpu"))
    flat = batch_logprobs(model, collated, **chosen).logprobs
    return list(flat.split([row.length for row in batch]))


def reference(
    model: nn.Module, row: Row, *, temperature: float = 1.0, kept: int = VOCABULARY
) -> Tensor:
    """One row without padding; each position's kept set by a sort."""
    ids = torch.tensor([row.prompt_token_ids + row.completion.token_ids])
    logits = model(input_ids=ids).logits[0]
    values = []
    for c, token in enumerate(row.completion.token_ids):
        scaled = logits[row.prompt_length + c - 1] / temperature
        best = sorted(range(VOCABULARY), key=lambda v: -scaled[v].item())[:kept]
        if token not in best:
            best[-1] = token
        values.append(scaled[token] - torch.stack([scaled[v] for v in best]).logsumexp(0))
    return torch.stack(values)


MIXED = [([7], [20, 21, 22, EOS]), ([3, 4, 5, 6, 8], [EOS]), ([9, 10, 11], [23, 24, EOS])]


@pytest.mark.parametrize(("temperature", "kept"), [(1.0, VOCABULARY), (0.6, VOCABULARY), (0.6, 5)])
def test_rows_of_a_padded_batch_equal_each_row_alone(
    model: nn.Module, temperature: float, kept: int
) -> None:
    """L7: the same distribution on both sides, temperature dividing the logits."""
    batch = rows(*MIXED, kept=kept)
    for row, got in zip(batch, logprobs(model, batch, temperature=temperature), strict=True):
        wanted = reference(model, row, temperature=temperature, kept=kept)
        torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-5)


def test_gradients_of_a_padded_batch_are_the_sum_of_each_row_alone(model: nn.Module) -> None:
    batch = rows(*MIXED, kept=5)

    def gradient(values: list[Tensor]) -> list[Tensor]:
        total = torch.stack([v.sum() for v in values]).sum()
        return list(torch.autograd.grad(total, list(model.parameters())))

    together = gradient(logprobs(model, batch, temperature=0.6))
    alone = gradient([reference(model, row, temperature=0.6, kept=5) for row in batch])
    for got, wanted in zip(together, alone, strict=True):
        assert torch.isfinite(got).all()
        torch.testing.assert_close(got, wanted, atol=5e-4, rtol=1e-4)


def test_the_end_token_is_the_last_place_with_a_gradient(model: nn.Module) -> None:
    """L1: of [20, EOS, padding, padding] exactly 20 and EOS train."""
    batch = rows(([7, 8], [20, EOS]), ([7, 8], [20, 21, 22, EOS]))
    collated = collate(batch, "sampled", torch.device("cpu"))
    assert collated.token_ids.tolist() == [20, EOS, 20, 21, 22, EOS]
    # Row 0 owns columns 0 and 1 of its four, row 1 all of its four.
    assert collated.places.tolist() == [0, 1, 4, 5, 6, 7]
    caught: list[Tensor] = []
    hook = model.get_output_embeddings().register_forward_hook(
        lambda _module, _inputs, output: caught.append(output) or output.retain_grad()
    )
    batch_logprobs(model, collated, temperature=1.0, support="sampled").logprobs.sum().backward()
    hook.remove()
    model.zero_grad(set_to_none=True)
    (logits,) = caught
    assert logits.shape == (2, 4, VOCABULARY)  # logits at the completions' columns only
    assert logits.grad is not None
    trained = logits.grad.abs().sum(dim=-1) > 0
    assert trained.tolist() == [[True, True, False, False], [True] * 4]


def test_a_completion_of_the_end_token_alone_trains(model: nn.Module) -> None:
    """L1, L16: [EOS]."""
    (row,) = rows(([7, 8], [EOS]))
    (got,) = logprobs(model, [row])
    torch.testing.assert_close(got, reference(model, row))
    assert got.shape == (1,)
    assert got.requires_grad


def test_end_and_filler_tokens_inside_a_prompt_are_prompt(model: nn.Module) -> None:
    """L4, L2: place tells padding from tokens, so ids 0 and EOS count wherever they stand."""
    batch = rows(([0, EOS, 7, 0, EOS], [20, 0, EOS]), ([5], [0, EOS, EOS, 0, EOS]))
    for row, got in zip(batch, logprobs(model, batch), strict=True):
        torch.testing.assert_close(got, reference(model, row), atol=2e-5, rtol=1e-5)


def test_positions_count_from_the_first_prompt_token() -> None:
    collated = collate(rows(*MIXED[:2]), "sampled", torch.device("cpu"))
    assert collated.attention_mask.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0, 0]]
    assert collated.input_ids.tolist() == [
        [0, 0, 0, 0, 7, 20, 21, 22],
        [3, 4, 5, 6, 8, EOS, 0, 0],
    ]
    assert collated.position_ids[0].tolist() == [0, 0, 0, 0, 0, 1, 2, 3]
    assert collated.position_ids[1, :6].tolist() == [0, 1, 2, 3, 4, 5]


def test_the_sampled_token_is_always_in_the_kept_set(model: nn.Module) -> None:
    (row,) = rows(([7], [20, EOS]), kept=1)
    collated = collate([row], "sampled", torch.device("cpu"))
    best = completion_logits(model, collated).argmax(dim=-1)
    got = batch_logprobs(model, collated, temperature=1.0, support="sampled")
    assert got.forced.tolist() == (best != torch.tensor([20, EOS])).tolist()
    assert got.logprobs.tolist() == pytest.approx([0.0, 0.0])


def test_full_support_takes_the_whole_softmax_whatever_was_kept(model: nn.Module) -> None:
    (row,) = rows(([7], [20, EOS]), kept=3)
    completion = replace(row.completion, full_logprobs=(-4.0, -5.0))
    row = replace(row, completion=completion)
    (got,) = logprobs(model, [row], temperature=0.6, support="full")
    torch.testing.assert_close(got, reference(model, row, temperature=0.6))
    assert collate([row], "full", torch.device("cpu")).engine_logprobs.tolist() == [-4.0, -5.0]


def test_full_support_needs_the_engines_full_logprobs() -> None:
    with pytest.raises(FieldError, match="include_full_logprobs"):
        collate(rows(([7], [20, EOS])), "full", torch.device("cpu"))


def test_an_unknown_support_is_refused() -> None:
    with pytest.raises(FieldError, match="logprob_support"):
        collate(rows(([7], [EOS])), "kept", torch.device("cpu"))


def test_advantages_and_weights_reach_every_token_of_their_row() -> None:
    batch = [
        replace(row, weight=weight, completion=replace(row.completion, advantage=advantage))
        for row, weight, advantage in zip(rows(*MIXED), [0.5, 0.25, 0.125], [1, -1, 2], strict=True)
    ]
    collated = collate(batch, "sampled", torch.device("cpu"))
    assert collated.weights.tolist() == [0.5] * 4 + [0.25] + [0.125] * 3
    assert collated.advantages.tolist() == [1.0] * 4 + [-1.0] + [2.0] * 3


def test_micro_batches_hold_every_row_once_within_the_budget() -> None:
    batch = rows(*[([1] * (1 + i % 5), [20] * (1 + i % 3)) for i in range(23)])
    parts = split_rows(batch, tokens=24)
    assert sorted(map(id, batch)) == sorted(id(row) for part in parts for row in part)
    for part in parts:
        columns = max(r.prompt_length for r in part) + max(r.length for r in part)
        assert len(part) * columns <= 24
    assert len(parts) < 12


def test_a_row_longer_than_the_budget_goes_alone() -> None:
    parts = split_rows(rows(([1] * 30, [20]), ([1], [20])), tokens=8)
    assert [len(part) for part in parts] == [1, 1]


def test_micro_batches_can_be_bounded_by_completions() -> None:
    assert [len(p) for p in split_rows(rows(*[([1], [20])] * 5), tokens=10**6, size=2)] == [2, 2, 1]


def test_a_model_with_absolute_positions_and_one_without_logits_to_keep() -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    gpt2 = GPT2LMHeadModel(config).eval()

    class Plain(nn.Module):
        def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Any:
            return gpt2(input_ids, attention_mask=attention_mask, position_ids=position_ids)

    assert "logits_to_keep" in inspect.signature(gpt2.forward).parameters
    batch = rows(*MIXED)
    for row, kept, plain in zip(
        batch, logprobs(gpt2, batch), logprobs(Plain(), batch), strict=True
    ):
        wanted = reference(gpt2, row)
        torch.testing.assert_close(kept, wanted, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(plain, wanted, atol=2e-5, rtol=1e-5)


def test_a_wrapper_that_takes_any_keyword_gets_all_of_them(model: nn.Module) -> None:
    class Wrapper(nn.Module):
        def forward(self, **inputs: Any) -> Any:
            return model(**inputs)

    batch = rows(*MIXED)
    for direct, wrapped in zip(logprobs(model, batch), logprobs(Wrapper(), batch), strict=True):
        assert torch.equal(direct, wrapped)
