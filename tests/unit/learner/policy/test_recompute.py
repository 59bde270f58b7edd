from __future__ import annotations

import pytest
import torch
from tests.support.models import tiny_model, tiny_tokenizer
from torch import Tensor, nn

from antiphon.clients.types import FieldError
from antiphon.learner.policy.recompute import layers_of, recomputed


@pytest.fixture
def model(tmp_path) -> nn.Module:
    return tiny_model(tiny_tokenizer(tmp_path), 0, dropout=0.5)


def gradients(model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    logits = model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False).logits
    logits.float().pow(2).mean().backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    return logits.detach(), grads


def kept_by_autograd(model: nn.Module) -> int:
    """Bytes that a forward keeps for the backward."""
    total = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal total
        total += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=torch.tensor([list(range(5, 25))]), use_cache=False)
    return total


def test_recomputing_keeps_less_and_changes_no_bit(model: nn.Module) -> None:
    layers = layers_of(model)
    assert len(layers) == 2
    plain_logits, plain = gradients(model)
    keeps = kept_by_autograd(model)
    with recomputed(layers):
        logits, grads = gradients(model)
        assert kept_by_autograd(model) < keeps / 2
    assert torch.equal(logits, plain_logits)
    assert all(torch.equal(grads[name], plain[name]) for name in plain)


def test_a_backward_may_come_after_and_the_layers_are_as_before(model: nn.Module) -> None:
    _, plain = gradients(model)
    calls: list[int] = []
    handle = model.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    with recomputed(layers_of(model)):
        loss = model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False).logits.pow(2).mean()
    assert calls == [1]
    assert all("forward" not in layer.__dict__ for layer in model.modules())
    loss.backward()
    assert calls == [1, 1]
    handle.remove()
    assert all(torch.equal(p.grad, plain[n]) for n, p in model.named_parameters())


def test_without_a_gradient_nothing_is_computed_twice(model: nn.Module) -> None:
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad(), recomputed(layers_of(model)):
        cache = model(input_ids=ids, use_cache=True).past_key_values
    assert cache.get_seq_length() == 3


def test_a_model_without_marked_layers_is_refused() -> None:
    with pytest.raises(FieldError, match="activation_checkpointing"):
        layers_of(nn.Sequential(nn.Linear(2, 2)))
