from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.support.lora import adapter_tensors, peft_model
from tests.support.models import tiny_model, tiny_tokenizer
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from antiphon.clients.types import FieldError, TensorDtype
from antiphon.services.common.lora import (
    Adapter,
    adapter_dtype,
    check_adapter,
    is_adapter_tensor,
)

IDS = torch.tensor([[5, 6, 7, 8]])
Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def model(tmp_path) -> nn.Module:
    return tiny_model(tiny_tokenizer(tmp_path), 0)


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def test_the_sum_is_the_equation() -> None:
    """W 1 = (1, 2), x = (1, 1), A = (3, 4), B = (1, -1), scaling 0.5: (3, 7) + (3.5, -3.5)."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    model[0].weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    Adapter(model).replace(
        {
            "0.lora_A.weight": torch.tensor([[3.0, 4.0]]),
            "0.lora_B.weight": torch.tensor([[1.0], [-1.0]]),
            "0.lora_scaling": torch.tensor(0.5),
        }
    )
    assert model(torch.tensor([[1.0, 1.0]])).tolist() == [[6.5, 3.5]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options",
    [{}, {"use_rslora": False, "r": 3, "alpha": 5}, {"targets": ["q_proj", "lm_head"]}],
)
def test_a_forward_is_bitwise_that_of_peft(
    model: nn.Module, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    """Tied heads too: an adapter of the head leaves the embedding alone."""
    model = model.to(dtype)
    peft = peft_model(model, 1, **options).to(dtype)
    before = copy.deepcopy(model.state_dict())
    plain = logits(model)
    adapter = Adapter(model)
    adapter.replace(adapter_tensors(peft))
    assert torch.equal(logits(model), logits(peft))
    assert not torch.equal(logits(model), plain)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_adapters_that_follow_each_other_leave_nothing_behind(model: nn.Module) -> None:
    plain = logits(model)
    adapter = Adapter(model)
    first, second = (peft_model(model, s, targets=[t]) for s, t in ((1, "q_proj"), (2, "o_proj")))
    for _ in range(3):
        adapter.replace(adapter_tensors(first))
        assert torch.equal(logits(model), logits(first))
        adapter.replace(adapter_tensors(second))
        assert torch.equal(logits(model), logits(second))
    adapter.replace({})
    assert torch.equal(logits(model), plain)


def test_the_tensors_are_copied(model: nn.Module) -> None:
    tensors = {n: t.clone() for n, t in adapter_tensors(peft_model(model, 1)).items()}
    Adapter(model).replace(tensors)
    before = logits(model)
    for tensor in tensors.values():
        tensor.fill_(7.0)
    assert torch.equal(logits(model), before)


def test_layers_that_hold_their_weights_transposed_take_adapters() -> None:
    """GPT-2's: weight [in, out]."""
    config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).eval()
    peft = peft_model(model, 1, targets=["c_attn"], fan_in_fan_out=True)
    Adapter(model).replace(adapter_tensors(peft))
    assert torch.equal(logits(model), logits(peft))


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    tensors = adapter_tensors(peft_model(model, 1, targets=["q_proj"]))
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {f"{Q}.lora_A.weight": (3, 17)},
            r"lora_A\.weight' of shape \[3, 17\], wanted .*\[3, 16\]",
        ),
        (
            {f"{Q}.lora_B.weight": (16, 2)},
            r"lora_B\.weight' of shape \[16, 2\], wanted .*\[16, 3\]",
        ),
        ({f"{Q}.lora_scaling": (1,)}, r"lora_scaling' of shape \[1\], wanted shape \[\]"),
        ({f"{Q}.lora_B.weight": None}, r"q_proj' without lora_B\.weight"),
        ({f"{Q}.lora_A.weight": (0, 16), f"{Q}.lora_B.weight": (16, 0)}, r"shape \[0, 16\]"),
        ({"model.norm.lora_A.weight": (3, 16)}, r"'model\.norm', wanted the name of a linear"),
        ({"nothing.lora_A.weight": (3, 16)}, r"'nothing', wanted the name of a linear"),
        ({"model.norm.weight": (16,)}, r"'model\.norm\.weight', wanted an adapter's"),
    ],
)
def test_what_does_not_fit_is_named_and_leaves_the_old_adapter(
    model: nn.Module, change: dict[str, tuple[int, ...] | None], text: str
) -> None:
    wanted = {n: s for n, s in {**shapes(model), **change}.items() if s is not None}
    with pytest.raises(FieldError, match=text):
        check_adapter(model, wanted.items(), "header.tensors")
    adapter = Adapter(model)
    adapter.replace(adapter_tensors(peft_model(model, 1)))
    before = logits(model)
    with pytest.raises(FieldError, match=text):
        adapter.replace({name: torch.zeros(shape) for name, shape in wanted.items()})
    assert torch.equal(logits(model), before)


def test_names_and_number_formats_on_the_wire(model: nn.Module) -> None:
    assert all(map(is_adapter_tensor, shapes(model)))
    assert not any(map(is_adapter_tensor, model.state_dict()))
    bf16 = TensorDtype.BFLOAT16
    assert adapter_dtype(f"{Q}.lora_A.weight", bf16) is bf16
    assert adapter_dtype(f"{Q}.lora_scaling", bf16) is TensorDtype.FLOAT32
