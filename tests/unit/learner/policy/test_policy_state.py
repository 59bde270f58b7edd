"""What a checkpoint holds of a policy."""

from __future__ import annotations

import copy

import pytest
from tests.support.policies import (
    BF16,
    F32,
    SETTINGS,
    assert_states_equal,
    copies,
    make_model,
    minibatch,
    rounded,
    same,
)

from antiphon.clients.types import FieldError, TensorDtype
from antiphon.learner.policy.policy import Policy


@pytest.mark.parametrize("wire", [BF16, F32])
def test_a_loaded_state_goes_on_bit_for_bit(wire: TensorDtype) -> None:
    first, second = make_model(), make_model()
    nodes = minibatch(make_model(), kept=5)
    policy = Policy(0, first, SETTINGS, wire_dtype=wire)
    policy.step(nodes)
    state = copy.deepcopy(policy.state_dict())
    policy.step(nodes)
    resumed = Policy(0, second, SETTINGS, wire_dtype=wire)
    resumed.load_state_dict(state)
    assert resumed.optimizer_steps == 1
    assert resumed.step(nodes).stepped
    assert same(second, copies(first))
    assert_states_equal(resumed.state_dict(), policy.state_dict())


def test_a_state_of_another_model_is_refused_before_anything_changes() -> None:
    model, other = make_model(tie=True), make_model(tie=False)
    state = Policy(0, other, SETTINGS).state_dict()
    policy = Policy(0, model, SETTINGS)
    before = copies(model)
    with pytest.raises(FieldError, match=r"lm_head\.weight"):
        policy.load_state_dict(state)
    assert same(model, before)


def test_a_state_before_the_first_step_loads() -> None:
    model = make_model()
    policy = Policy(0, model, SETTINGS)
    state = copy.deepcopy(policy.state_dict())
    policy.step(minibatch(model))
    policy.load_state_dict(state)
    assert policy.optimizer_steps == 0
    assert_states_equal(policy.state_dict(), state)
    assert same(model, copies(rounded(make_model())))
