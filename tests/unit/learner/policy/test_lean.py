"""Leaner modules: the numbers of those they stand for, and less kept for the backward."""

from __future__ import annotations

import torch
from tests.support.policies import make_model
from torch import Tensor, nn
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaForCausalLM

from antiphon.learner.policy.lean import Lean

IDS = torch.tensor([[5, 6, 7, 5, 1]])


def states_of(model: LlamaForCausalLM) -> Tensor:
    states: Tensor = model.model(input_ids=IDS, use_cache=False).last_hidden_state
    return states


def gradients(model: LlamaForCausalLM) -> dict[str, Tensor]:
    states_of(model).square().sum().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def kept_numbers(model: LlamaForCausalLM) -> int:
    """Numbers that a forward keeps for the backward, each piece of memory once, weights apart."""
    kept: dict[int, Tensor] = {}
    weights = {p.data_ptr() for p in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        states = states_of(model)
    del states
    return sum(tensor.numel() for tensor in kept.values())


def test_numbers_and_gradients_are_those_of_the_modules_themselves() -> None:
    model = make_model().eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    lean = Lean(model)
    assert lean
    wanted_states, wanted = states_of(model), gradients(model)
    with lean.used():
        torch.testing.assert_close(states_of(model), wanted_states, rtol=1e-6, atol=1e-6)
        states_of(model).square().sum().backward()
        assert model.model.embed_tokens.weight.grad.is_sparse
    assert not model.model.embed_tokens.weight.grad.is_sparse
    for name, parameter in model.named_parameters():
        if name in wanted:
            torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-4, atol=1e-4)


def test_gradients_add_up_over_backwards() -> None:
    model = make_model().eval()
    lean = Lean(model)
    once = gradients(model)
    for _ in range(2):
        with lean.used():
            states_of(model).square().sum().backward()
    for name, gradient in once.items():
        twice = model.get_parameter(name).grad
        torch.testing.assert_close(twice, 2 * gradient, rtol=1e-4, atol=1e-4)


def test_norms_and_gated_layers_keep_their_inputs_alone() -> None:
    """A norm keeps no normed input besides, a gated layer neither silu(gate) nor the product."""
    model = make_model().eval()
    plain = kept_numbers(model)
    with Lean(model).used():
        lean = kept_numbers(model)
    tokens, layers, hidden, inner = IDS.numel(), 2, 16, 24
    assert plain - lean >= tokens * (layers * (2 * hidden + 2 * inner) + hidden)


def test_a_model_is_as_before_afterwards() -> None:
    model = make_model().eval()
    lean = Lean(model)
    with lean.used():
        assert model.model.embed_tokens.sparse
        assert "forward" in vars(model.model.norm)
    assert not model.model.embed_tokens.sparse
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_layer_that_only_looks_alike_is_left_as_it_is() -> None:
    """Gemma's norms scale by 1 + w, its gated layers have another activation."""
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
        )
    )
    with Lean(model.eval()).used():
        assert not any("forward" in vars(module) for module in model.modules())


def test_a_layer_whose_inner_products_somebody_watches_is_left_as_it_is() -> None:
    model = make_model().eval()
    seen: list[torch.Size] = []
    first = model.model.layers[0].mlp
    first.down_proj.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape))
    lean = Lean(model)
    seen.clear()
    with lean.used():
        states_of(model)
        assert "forward" not in vars(first)
        assert "forward" in vars(model.model.layers[1].mlp)
    assert seen == [(1, IDS.numel(), 24)]


def test_a_model_in_another_number_format_is_left_as_it_is() -> None:
    assert not Lean(make_model(dtype=torch.bfloat16))
