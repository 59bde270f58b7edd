"""The optimiser steps of a policy, against the equations."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from tests.support.policies import (
    BF16,
    EOS,
    F32,
    SETTINGS,
    VOCABULARY,
    adamw,
    assert_states_equal,
    copies,
    make_model,
    minibatch,
    reference_gradient,
    rounded,
    row_logprobs,
    same,
    sampled_by,
)
from tests.support.trees import make_sample
from torch import Tensor

from antiphon.clients.types import FieldError, TensorDtype
from antiphon.learner.policy.policy import Policy
from antiphon.learner.policy.schedules import Schedule


@pytest.mark.parametrize("kept", [VOCABULARY, 5])
@pytest.mark.parametrize("normalization", ["sequence", "token", "constant"])
def test_a_step_equals_the_equations(kept: int, normalization: str) -> None:
    model = make_model()
    reference = copy.deepcopy(model)
    nodes = minibatch(model, kept=kept, shift=0.15)
    gradient = reference_gradient(reference, nodes, kept=kept, weights=normalization)
    settings = replace(SETTINGS, loss_normalization=normalization)
    stats = Policy(0, model, settings, wire_dtype=F32).step(nodes)
    norm = math.sqrt(sum(g.double().pow(2).sum().item() for g in gradient.values()))
    assert stats.grad_norm == pytest.approx(norm, rel=1e-4)
    for name, p in model.named_parameters():
        # Adam's first step is about lr * sign(g), so only tiny gradients may differ in it.
        wanted = adamw(reference.get_parameter(name), [gradient[name]], lr=1e-3)
        clear = gradient[name].abs() > 1e-5
        torch.testing.assert_close(p[clear], wanted[clear], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("normalization", ["sequence", "token", "constant"])
def test_accumulated_minibatches_step_along_the_mean_of_their_gradients(
    normalization: str,
) -> None:
    """Each minibatch is normalised by itself; one without a live node is in no denominator."""
    model = make_model()
    first, second = minibatch(model, shift=0.1)
    dead = [replace(second, dead=True)]
    each = [
        reference_gradient(copy.deepcopy(model), [node], kept=VOCABULARY, weights=normalization)
        for node in (first, second)
    ]
    mean = {name: (each[0][name] + each[1][name]) / 2 for name in each[0]}
    settings = replace(SETTINGS, loss_normalization=normalization)
    policy = Policy(0, model, settings, wire_dtype=F32)
    stats = policy.step([first], dead, [second])
    norm = math.sqrt(sum(g.double().pow(2).sum().item() for g in mean.values()))
    assert stats.grad_norm == pytest.approx(norm, rel=1e-4)
    assert (policy.optimizer_steps, stats.live_nodes, stats.dead_nodes) == (1, 2, 1)
    for name, moments in policy.state_dict()["moments"].items():
        torch.testing.assert_close(moments["exp_avg"], 0.1 * mean[name], atol=1e-6, rtol=1e-4)
    alone = [Policy(0, make_model(), settings, wire_dtype=F32).step([n]) for n in (first, second)]
    assert stats.loss == pytest.approx(sum(one.loss for one in alone) / 2, abs=1e-6)
    assert stats.tokens == sum(one.tokens for one in alone)


def test_a_step_clips_tells_its_rate_and_recomputes_layers_without_a_difference() -> None:
    nodes = minibatch(make_model())
    norm = Policy(0, make_model(), SETTINGS, wire_dtype=F32).step(nodes).grad_norm
    settings = replace(
        SETTINGS, max_grad_norm=norm / 4, schedule=Schedule("linear", warmup_steps=1, total_steps=9)
    )
    models = [make_model(), make_model()]
    policies = [
        Policy(0, models[0], settings, wire_dtype=F32),
        Policy(0, models[1], replace(settings, activation_checkpointing=True), wire_dtype=F32),
    ]
    for step, factor in ((1, 1 / 2), (2, 1.0), (3, 7 / 8)):
        plain, recomputing = (policy.step(nodes) for policy in policies)
        assert recomputing == plain
        assert plain.learning_rate == pytest.approx(1e-3 * factor)
        if step == 1:
            assert plain.grad_norm == pytest.approx(norm)  # that before clipping
            moments = policies[0].state_dict()["moments"].values()
            clipped = math.sqrt(sum((m["exp_avg"] / 0.1).pow(2).sum().item() for m in moments))
            assert clipped == pytest.approx(norm / 4, rel=1e-4)
    assert same(models[1], copies(models[0]))


@pytest.mark.parametrize("wire", [BF16, F32])
def test_a_frozen_policy_takes_no_step_and_keeps_the_weights_that_it_is_sampled_with(
    wire: TensorDtype,
) -> None:
    model = make_model()
    reference = rounded(model) if wire is BF16 else copy.deepcopy(model)
    nodes = minibatch(model)
    policy = Policy(0, model, replace(SETTINGS, trainable=False), wire_dtype=wire)
    stats = policy.step(nodes, [replace(nodes[0], dead=True)])
    assert (stats.stepped, stats.live_nodes, stats.dead_nodes) == (False, 2, 1)
    assert policy.optimizer_steps == 0
    assert same(model, copies(reference))
    state = policy.state_dict()
    assert (state["masters"], state["moments"]) == ({}, {})
    policy.load_state_dict(state)
    assert set(policy.wire_tensors()) == set(Policy(0, reference, SETTINGS).wire_tensors())
    with pytest.raises(FieldError, match="masters"):
        policy.load_state_dict(Policy(0, reference, SETTINGS).state_dict())


def test_two_steps_carry_the_moments_on() -> None:
    model = make_model()
    reference = copy.deepcopy(model)
    nodes = minibatch(model)
    policy = Policy(0, model, SETTINGS, wire_dtype=F32)
    policy.step(nodes)
    between = copy.deepcopy(model)
    policy.step(nodes)
    first = reference_gradient(reference, nodes, kept=VOCABULARY)
    second = reference_gradient(between, nodes, kept=VOCABULARY)
    for name, p in model.named_parameters():
        wanted = adamw(reference.get_parameter(name), [first[name], second[name]], lr=1e-3)
        clear = (first[name].abs() > 1e-4) & (second[name].abs() > 1e-4)
        torch.testing.assert_close(p[clear], wanted[clear], atol=2e-6, rtol=1e-5)
    assert policy.optimizer_steps == 2
    for name, master in policy.state_dict()["masters"].items():
        assert master.data_ptr() == model.get_parameter(name).data_ptr()  # no second copy


@pytest.mark.parametrize("wire", [BF16, F32])
@pytest.mark.parametrize("before_it", [0, 1])
def test_dead_nodes_leave_weights_and_optimiser_bitwise_unchanged(
    wire: TensorDtype, before_it: int
) -> None:
    """L5: no step, no decay, also where momentum has built up."""
    model = make_model()
    policy = Policy(0, model, replace(SETTINGS, weight_decay=0.5), wire_dtype=wire)
    nodes = minibatch(model)
    for _ in range(before_it):
        policy.step(nodes)
    before, state = copies(model), copy.deepcopy(policy.state_dict())
    dead = [replace(node, dead=True) for node in nodes]
    stats = policy.step(dead)
    assert (stats.stepped, stats.live_nodes, stats.dead_nodes, stats.loss) == (False, 0, 2, 0.0)
    assert same(model, before)
    assert_states_equal(policy.state_dict(), state)
    assert policy.optimizer_steps == before_it


def test_dead_nodes_are_in_no_denominator() -> None:
    nodes = minibatch(make_model())
    dead = sampled_by(make_model(), [5, 6], [([20, EOS], 0.0), ([21, EOS], 0.0)])
    for normalization in ("sequence", "token", "constant"):
        settings = replace(SETTINGS, loss_normalization=normalization)
        models = [make_model(), make_model()]
        batches = [nodes, [nodes[0], replace(dead, dead=True), nodes[1]]]
        first, second = (
            Policy(0, model, settings).step(batch)
            for model, batch in zip(models, batches, strict=True)
        )
        assert second == replace(first, dead_nodes=1)
        assert same(models[0], copies(models[1]))


def test_micro_batches_change_the_step_by_rounding_only() -> None:
    def step(**limits: int) -> tuple[float, float, dict[str, Tensor]]:
        model = make_model()
        nodes = minibatch(model, kept=5, shift=0.1)
        policy = Policy(0, model, replace(SETTINGS, learning_rate=0.1, **limits), wire_dtype=F32)
        stats = policy.step(nodes)
        moments = policy.state_dict()["moments"]
        return stats.loss, stats.grad_norm, {n: m["exp_avg"] for n, m in moments.items()}

    whole = step(micro_batch_tokens=10_000)
    for limits in ({"micro_batch_tokens": 1}, {"micro_batch_tokens": 14}, {"micro_batch_size": 2}):
        part = step(**limits)
        assert part[:2] == pytest.approx(whole[:2], rel=1e-4)
        for name, moment in part[2].items():
            torch.testing.assert_close(moment, whole[2][name], atol=1e-6, rtol=1e-4)


def test_a_step_recurs_bit_for_bit() -> None:
    models = [make_model(), make_model()]
    for model in models:
        nodes = minibatch(make_model(), kept=5)
        policy = Policy(0, model, SETTINGS, wire_dtype=F32)
        policy.step(nodes)
        policy.step(nodes)
    assert same(models[0], copies(models[1]))


def test_the_gradient_at_ratio_one_is_that_without_a_ratio() -> None:
    norms = []
    for ratio in (True, False):
        model = make_model()
        settings = replace(SETTINGS, importance_ratio=ratio)
        norms.append(Policy(0, model, settings, wire_dtype=F32).step(minibatch(model)).grad_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_a_stale_ratio_is_truncated_where_staleness_is_allowed() -> None:
    norms = []
    for staleness in (0, 1):
        model = make_model()
        # Ratio e, all advantages negative: nothing is clipped, and 2 / e of the gradient stays.
        node = sampled_by(model, [5], [([20, EOS], -1.0), ([21, EOS], -2.0)], shift=-1.0)
        settings = replace(SETTINGS, max_staleness=staleness)
        norms.append(Policy(0, model, settings, wire_dtype=F32).step([node]).grad_norm)
    assert norms[1] / norms[0] == pytest.approx(2 / math.e, rel=1e-4)


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(FieldError, match=r"agents\[3\].*requires_grad"):
        Policy(3, make_model().requires_grad_(False), SETTINGS)


def test_gradients_that_the_caller_left_are_in_no_step() -> None:
    models = [make_model(), make_model()]
    for p in models[1].parameters():
        p.grad = torch.full_like(p, 100.0)
    for model in models:
        Policy(0, model, SETTINGS, wire_dtype=F32).step(minibatch(make_model()))
        assert all(p.grad is None for p in model.parameters())
    assert same(models[0], copies(models[1]))


def test_a_step_needs_no_grad_mode_of_the_caller() -> None:
    model = make_model()
    before = copies(model)
    with torch.no_grad():
        assert Policy(0, model, SETTINGS, wire_dtype=F32).step(minibatch(model)).stepped
    assert not same(model, before)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    model = make_model()
    policy = Policy(1, model, SETTINGS, wire_dtype=F32)
    nodes = minibatch(model)
    policy.step(nodes)
    before, state = copies(model), copy.deepcopy(policy.state_dict())
    endless = make_sample([5], [([20, EOS], -1.0), ([21, EOS], 1.0)], logprobs=[[-1e5] * 2] * 2)
    with pytest.raises(FloatingPointError, match="agent 1, optimiser step 2"):
        policy.step([endless])
    assert same(model, before)
    assert_states_equal(policy.state_dict(), state)
    assert all(p.grad is None for p in model.parameters())


def test_steps_raise_the_probability_of_what_was_better() -> None:
    model = make_model()
    policy = Policy(0, model, SETTINGS, wire_dtype=F32)
    good, bad = [20, EOS], [21, EOS]

    def total(tokens: list[int]) -> float:
        with torch.no_grad():
            return row_logprobs(model, [5], tokens, VOCABULARY, 0.6).sum().item()

    before = total(good), total(bad)
    for _ in range(5):
        policy.step([sampled_by(model, [5], [(good, 1.0), (bad, -1.0)])])
    assert total(good) > before[0] + 0.1
    assert total(bad) < before[1] - 0.1
