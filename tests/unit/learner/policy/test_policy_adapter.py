"""A policy whose adapter alone is trained."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.lora import peft_model
from tests.support.policies import (
    BF16,
    F32,
    SETTINGS,
    adamw,
    assert_states_equal,
    copies,
    make_model,
    minibatch,
    reference_gradient,
    rounded,
    sampled_by,
)
from torch import Tensor, nn

from antiphon.clients.types import FieldError, TensorDtype
from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.policy.policy import Policy
from antiphon.services.common.lora import is_adapter_tensor


def base_weights(model: Any) -> dict[str, Tensor]:
    return {n: t for n, t in copies(model).items() if ".lora_" not in n}


def adapter_gradient(model: nn.Module, nodes: Sequence[TrainingSample]) -> dict[str, Tensor]:
    """The test's own gradient, of A and B."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    gradient = reference_gradient(model.requires_grad_(True), nodes, kept=5)
    return {name: gradient[name] for name in trained}


@pytest.mark.parametrize("tie", [True, False])
def test_a_step_is_adamws_on_a_and_b_and_the_base_stays_bitwise(tie: bool) -> None:
    adapted = peft_model(make_model(tie=tie), 1)
    reference = copy.deepcopy(adapted)
    nodes = minibatch(adapted, kept=5, shift=0.1)
    base = base_weights(adapted)
    wanted = adapter_gradient(reference, nodes)
    policy = Policy(0, adapted, SETTINGS, wire_dtype=F32)
    assert policy.step(nodes).stepped
    state = policy.state_dict()
    assert state["masters"].keys() == wanted.keys()
    for name, gradient in wanted.items():
        moment = state["moments"][name]["exp_avg"]
        torch.testing.assert_close(moment, 0.1 * gradient, atol=1e-6, rtol=1e-4)
        after = adamw(reference.get_parameter(name), [gradient], lr=1e-3)
        clear = gradient.abs() > 1e-5
        torch.testing.assert_close(
            adapted.get_parameter(name)[clear], after[clear], atol=1e-6, rtol=1e-5
        )
    assert all(torch.equal(t, base[n]) for n, t in base_weights(adapted).items())


@pytest.mark.parametrize("wire", [BF16, F32])
def test_what_is_sent_is_what_the_forward_uses(wire: TensorDtype) -> None:
    """Rounded base, rounded adapter; a step rounds the adapter's master again."""
    adapted = peft_model(make_model(), 1)
    plain = rounded(make_model()) if wire is BF16 else make_model()
    policy = Policy(0, adapted, SETTINGS, wire_dtype=wire)
    policy.step([sampled_by(adapted, [5], [([20, 2], 1.0), ([21, 2], -1.0)])])
    sent = policy.wire_tensors()
    base = {n: t for n, t in sent.items() if not is_adapter_tensor(n)}
    assert all(torch.equal(t, plain.get_parameter(n)) for n, t in base.items())
    masters = policy.state_dict()["masters"]
    assert len(masters) == sum(n.endswith("weight") for n in sent if n not in base)
    for name, master in masters.items():
        wired = sent[name.removeprefix("base_model.model.").replace(".default.", ".")]
        assert torch.equal(wired, master.to(torch.bfloat16).float() if wire is BF16 else master)


def test_an_adapters_state_goes_on_bit_for_bit_and_holds_nothing_of_the_base() -> None:
    nodes = minibatch(make_model(), kept=5)
    policies = [Policy(0, peft_model(make_model(), 1), SETTINGS) for _ in range(2)]
    policies[0].step(nodes)
    state = copy.deepcopy(policies[0].state_dict())
    assert all(".lora_" in name for name in state["masters"])
    policies[1].load_state_dict(state)
    for policy in policies:
        policy.step(nodes)
    assert_states_equal(policies[1].state_dict(), policies[0].state_dict())
    first, second = (copies(policy.model) for policy in policies)
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(FieldError, match="masters"):
        policies[0].load_state_dict(Policy(0, make_model(), SETTINGS).state_dict())


def test_recomputing_bf16_and_rotary_buffers_work_through_peft() -> None:
    plain = peft_model(make_model(), 1).to(torch.bfloat16)
    recomputing = copy.deepcopy(plain)
    settings = replace(SETTINGS, compute_dtype="bfloat16")
    nodes = minibatch(rounded(make_model()))
    one = Policy(0, plain, settings)
    other = Policy(0, recomputing, replace(settings, activation_checkpointing=True))
    assert one.step(nodes) == other.step(nodes)
    assert {p.dtype for p in plain.parameters()} == {torch.bfloat16}
    frequencies = make_model().model.rotary_emb.inv_freq
    assert torch.equal(plain.get_base_model().model.rotary_emb.inv_freq, frequencies)


def test_an_adapter_that_does_not_fit_is_refused_before_anything_changes() -> None:
    adapted = peft_model(make_model(), 1)
    adapted.merge_adapter()
    before = copies(adapted)
    with pytest.raises(FieldError, match="a merged adapter"):
        Policy(0, adapted, SETTINGS)
    assert all(torch.equal(p, before[n]) for n, p in adapted.named_parameters())
