"""Layers laid out for few rows compute what they did, before and after new weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from antiphon.clients.types import FieldError
from antiphon.services.common.models import load_model
from antiphon.services.common.tensors import wire_tensors
from antiphon.services.generation.few_rows import multiply_few_rows_fast
from antiphon.services.generation.new_weights import NewWeights

Folders = Callable[..., Path]
IDS = torch.tensor([[5, 6, 7, 8]])


@pytest.mark.parametrize("tie", [True, False])
def test_weights_keep_names_shapes_and_numbers_and_logits_stay(
    tiny_folders: Folders, tie: bool
) -> None:
    plain = load_model(tiny_folders(seed=0, tie=tie), dtype=torch.float32)
    model = load_model(tiny_folders(seed=0, tie=tie), dtype=torch.float32)
    multiply_few_rows_fast(model, columns=True)
    assert wire_tensors(model).keys() == wire_tensors(plain).keys()
    for name, tensor in wire_tensors(model).items():
        assert torch.equal(tensor, wire_tensors(plain)[name])
    assert not model.model.layers[0].mlp.up_proj.weight.is_contiguous()
    assert model.model.embed_tokens.weight.is_contiguous() == (not tie)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tie
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, plain(IDS).logits)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [8192, 10_001])
def test_a_large_layer_computes_in_parts_what_it_did_whole(
    tiny_folders: Folders, outputs: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(tiny_folders(seed=0), dtype=torch.float32)
    width = model.lm_head.in_features
    model.lm_head = torch.nn.Linear(width, outputs, bias=bias)
    multiply_few_rows_fast(model, columns=False)
    states = torch.randn(2, 3, width, generator=torch.Generator().manual_seed(0))
    watched = watch_products(monkeypatch)
    for _ in range(2):
        with torch.no_grad():
            wanted = torch.nn.functional.linear(states, model.lm_head.weight, model.lm_head.bias)
            del watched[:]
            torch.testing.assert_close(model.lm_head(states), wanted)
        part = 768 * torch.get_num_threads()
        full, rest = divmod(outputs, part)
        assert watched == [part] * full + [rest] * (rest > 0)
        # New weights are put in as other memory.
        model.lm_head.weight.data = torch.full((outputs, width), 0.5)
    assert all(tensor.is_contiguous() for tensor in wire_tensors(model).values())


def watch_products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many outputs each product has, from now on."""
    seen: list[int] = []
    linear = torch.nn.functional.linear

    def watched(states: torch.Tensor, weight: torch.Tensor, bias: object = None) -> torch.Tensor:
        seen.append(len(weight))
        return linear(states, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    return seen


def test_many_rows_are_multiplied_at_once(
    tiny_folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(tiny_folders(seed=0), dtype=torch.float32)
    model.lm_head = torch.nn.Linear(model.lm_head.in_features, 8192)
    multiply_few_rows_fast(model, columns=False)
    watched = watch_products(monkeypatch)
    with torch.no_grad():
        model.lm_head(torch.zeros(1, 129, model.lm_head.in_features))
    assert watched == [8192]


@pytest.mark.parametrize(("capability", "columns"), [("AVX2", False), ("AVX512", True)])
def test_the_processor_decides(
    tiny_folders: Folders, monkeypatch: pytest.MonkeyPatch, capability: str, columns: bool
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    model = load_model(tiny_folders(seed=0), dtype=torch.float32)
    model.lm_head = torch.nn.Linear(model.lm_head.in_features, 8192)
    multiply_few_rows_fast(model)
    assert model.lm_head.weight.is_contiguous() == (not columns)
    assert ("forward" in vars(model.lm_head)) == (not columns)


@pytest.mark.parametrize("columns", [True, False])
def test_a_model_in_another_format_is_left_as_it_is(tiny_folders: Folders, columns: bool) -> None:
    model = load_model(tiny_folders(seed=0), dtype=torch.bfloat16)
    model.lm_head = torch.nn.Linear(model.lm_head.in_features, 8192, dtype=torch.bfloat16)
    multiply_few_rows_fast(model, columns=columns)
    assert "forward" not in vars(model.lm_head)
    assert all(tensor.is_contiguous() for tensor in wire_tensors(model).values())


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [True, False])
def test_new_weights_wait_until_they_are_put_in(
    tiny_folders: Folders, tie: bool, dtype: torch.dtype, columns: bool
) -> None:
    """S2: the old weights sample until all of the new ones are ready."""
    target = load_model(tiny_folders(seed=5, tie=tie), dtype=dtype)
    model = load_model(tiny_folders(seed=0, tie=tie), dtype=dtype)
    multiply_few_rows_fast(model, columns=columns)
    with torch.no_grad():
        before = model(IDS).logits
        pushed = {n: t.bfloat16().clone() for n, t in wire_tensors(target).items()}
        for name, tensor in wire_tensors(target).items():
            tensor.copy_(pushed[name])
        new = NewWeights(model, pushed)
        assert torch.equal(model(IDS).logits, before)
        new.put_in()
        # What was pushed is the pusher's again.
        for tensor in pushed.values():
            tensor.zero_()
        torch.testing.assert_close(model(IDS).logits, target(IDS).logits)
    for name, tensor in wire_tensors(model).items():
        assert torch.equal(tensor, wire_tensors(target)[name])
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tie


def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(tiny_folders: Folders) -> None:
    model = load_model(tiny_folders(seed=0), dtype=torch.float32)
    multiply_few_rows_fast(model)
    before = {name: tensor.clone() for name, tensor in wire_tensors(model).items()}
    short = dict(list(before.items())[1:])
    with pytest.raises(FieldError, match="missing"):
        NewWeights(model, short)
    assert all(torch.equal(t, before[name]) for name, t in wire_tensors(model).items())
