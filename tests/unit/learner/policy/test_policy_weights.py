"""Masters, the rounded weights that are sampled from, and the model that is handed back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.policies import (
    BF16,
    F32,
    SETTINGS,
    VOCABULARY,
    adamw,
    copies,
    make_model,
    minibatch,
    reference_gradient,
    rounded,
    same,
)

from antiphon.clients.types import TensorDtype
from antiphon.learner.policy.policy import Policy


def test_bf16_compute_holds_the_same_weights_and_a_float32_master() -> None:
    """Gradients agree to bf16's rounding (2^-8); the master moves by float32 steps."""
    models = [make_model(dtype=torch.bfloat16), make_model(dtype=torch.bfloat16)]
    nodes = minibatch(rounded(make_model()))
    settings = replace(SETTINGS, learning_rate=5e-6, weight_decay=0.0, micro_batch_size=2)
    wide = Policy(0, models[0], settings)
    narrow = Policy(0, models[1], replace(settings, compute_dtype="bfloat16"))
    assert {p.dtype for p in models[0].parameters()} == {torch.float32}
    assert {p.dtype for p in models[1].parameters()} == {torch.bfloat16}
    assert models[1].model.rotary_emb.inv_freq.dtype == torch.float32
    start = {name: master.clone() for name, master in narrow.state_dict()["masters"].items()}
    assert all(torch.equal(models[0].get_parameter(n), m) for n, m in start.items())
    one, other = wide.step(nodes), narrow.step(nodes)
    assert other.grad_norm == pytest.approx(one.grad_norm, rel=0.1)
    assert other.logprob_gap_max < 0.1
    state, wanted = narrow.state_dict(), wide.state_dict()
    for name, master in state["masters"].items():
        gradient = state["moments"][name]["exp_avg"] / 0.1
        torch.testing.assert_close(
            gradient, wanted["moments"][name]["exp_avg"] / 0.1, atol=0.05 * one.grad_norm, rtol=0.1
        )
        assert (gradient.dtype, master.dtype) == (torch.float32, torch.float32)
        moved = gradient.abs() > 1e-4
        # The step is lr to within 1 %: far below a bf16 unit in the last place of most weights.
        step = (master - start[name]).abs()[moved]
        torch.testing.assert_close(step, torch.full_like(step, 5e-6), atol=3e-7, rtol=0)
        assert torch.equal(models[1].get_parameter(name), master.to(torch.bfloat16))
    narrow.restore_dtype()
    assert models[1].dtype == torch.bfloat16


def test_a_model_given_in_float32_comes_back_so_from_bf16_compute() -> None:
    model = make_model()
    policy = Policy(0, model, replace(SETTINGS, compute_dtype="bfloat16"))
    policy.step(minibatch(rounded(make_model())))
    sent = {name: tensor.float() for name, tensor in policy.wire_tensors().items()}
    policy.restore_dtype()
    assert model.dtype == torch.float32
    assert all(torch.equal(model.get_parameter(name), tensor) for name, tensor in sent.items())


def test_the_model_is_the_rounded_master_after_every_step() -> None:
    model = make_model()
    reference = rounded(model)
    nodes = minibatch(reference, shift=0.1)
    policy = Policy(0, model, SETTINGS)
    assert all(torch.equal(p, reference.get_parameter(n)) for n, p in model.named_parameters())
    gradient = reference_gradient(reference, nodes, kept=VOCABULARY)
    policy.step(nodes)
    masters = policy.state_dict()["masters"]
    for name, p in model.named_parameters():
        assert p.dtype == torch.float32
        assert torch.equal(p, masters[name].to(torch.bfloat16).float())
        wanted = adamw(reference.get_parameter(name), [gradient[name]], lr=1e-3)
        clear = gradient[name].abs() > 1e-5
        torch.testing.assert_close(masters[name][clear], wanted[clear], atol=1e-6, rtol=1e-5)
    for name, tensor in policy.wire_tensors().items():
        assert torch.equal(tensor, tensor.to(torch.bfloat16).float()), name


def test_updates_far_below_a_bf16_unit_add_up_in_the_master() -> None:
    """L21: at learning rate 5e-6 almost no bf16 weight moves in a step, yet all masters do."""
    model = make_model()
    policy = Policy(0, model, replace(SETTINGS, learning_rate=5e-6, weight_decay=0.0))
    start = copies(model)
    nodes = minibatch(model)
    name = "model.layers.0.mlp.down_proj.weight"
    moved = []
    for _ in range(40):
        policy.step(nodes)
        moved.append((model.get_parameter(name) != start[name]).float().mean().item())
    master = policy.state_dict()["masters"][name]
    assert moved[0] < 0.1
    assert (master != start[name]).float().mean() > 0.95
    assert moved[-1] > 4 * moved[0]
    assert moved[-1] > 0.1


@pytest.mark.parametrize("wire", [BF16, F32])
def test_tied_weights_stay_tied_and_are_optimised_once(wire: TensorDtype) -> None:
    model = make_model(tie=True)
    policy = Policy(0, model, SETTINGS, wire_dtype=wire)
    policy.step(minibatch(model))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert "lm_head.weight" not in policy.state_dict()["masters"]
    assert "lm_head.weight" not in policy.wire_tensors()
    policy.restore_dtype()
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_frozen_parameters_stay_untouched_and_on_the_wire() -> None:
    model = make_model(tie=False)
    frozen = model.model.embed_tokens.weight
    frozen.requires_grad_(False)
    before = rounded(model).model.embed_tokens.weight
    policy = Policy(0, model, SETTINGS)
    assert policy.step(minibatch(model)).stepped
    assert torch.equal(frozen, before)
    assert frozen.grad is None
    assert "model.embed_tokens.weight" in policy.wire_tensors()
    policy.restore_dtype()
    assert not frozen.requires_grad
    assert model.lm_head.weight.requires_grad


def test_a_bf16_model_computes_in_float32_and_is_handed_back_as_it_came() -> None:
    model = make_model(dtype=torch.bfloat16)
    parameters = dict(model.named_parameters())
    policy = Policy(0, model, SETTINGS)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    policy.step(minibatch(model))
    published = {name: t.clone() for name, t in policy.wire_tensors().items()}
    policy.restore_dtype()
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    for name, p in model.named_parameters():
        assert p is parameters[name]
        assert p.grad is None
        assert torch.equal(p.float(), published[name])


def test_a_bf16_model_trained_at_float32_keeps_what_was_sampled_from() -> None:
    model = make_model(dtype=torch.bfloat16)
    policy = Policy(0, model, SETTINGS, wire_dtype=F32)
    policy.step(minibatch(model))
    trained = copies(model)
    policy.restore_dtype()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert same(model, trained)


def test_rotary_frequencies_are_those_of_an_engine_that_builds_its_own() -> None:
    whole = make_model(dtype=torch.float32)
    model = make_model(dtype=torch.bfloat16)
    frequencies = whole.model.rotary_emb.inv_freq
    assert not torch.equal(model.model.rotary_emb.inv_freq.float(), frequencies)
    policy = Policy(0, model, SETTINGS)
    assert torch.equal(model.model.rotary_emb.inv_freq, frequencies)
    policy.restore_dtype()
    assert model.dtype == torch.bfloat16


def test_training_runs_without_dropout_and_gives_the_mode_back() -> None:
    model = make_model(dropout=0.5)
    model.train()
    model.model.layers[1].eval()
    quiet = make_model()
    nodes = minibatch(quiet.eval())
    policy = Policy(0, model, SETTINGS)
    assert policy.step(nodes) == Policy(0, quiet, SETTINGS).step(nodes)
    assert same(model, copies(quiet))
    policy.restore_dtype()
    assert model.training
    assert model.model.layers[0].self_attn.training
    assert not model.model.layers[1].self_attn.training
