from __future__ import annotations

from typing import Any

import pytest

from antiphon.clients.types import FieldError
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.config.optimization import PER_AGENT
from antiphon.learner.config.optimizer import OptimizerSettings
from antiphon.learner.config.per_agent import check_per_agent, of_agent
from antiphon.learner.policy.schedules import Schedule
from antiphon.learner.run.early_stop import StopRule


def test_defaults_are_torchs_adamw_at_a_constant_rate() -> None:
    settings = MAGRPOConfig().optimizer_settings(0, 5e-6, None)
    assert settings == OptimizerSettings(
        learning_rate=5e-6,
        betas=(0.9, 0.999),
        adam_epsilon=1e-8,
        weight_decay=0.01,
        decay_norms_and_biases=True,
        max_grad_norm=None,
        schedule=Schedule("constant"),
    )


def test_lists_give_each_agent_its_own() -> None:
    config = MAGRPOConfig(
        lr_scheduler_type=["constant", "linear"],
        warmup_steps=[0, 2],
        weight_decay=[0.5, "none"],
        max_grad_norm=["none", 1.0],
        trainable=[True, False],
    )
    first, second = (config.optimizer_settings(agent, 0.1, 9) for agent in (0, 1))
    assert (first.weight_decay, second.weight_decay) == (0.5, 0.01)
    assert (first.max_grad_norm, second.max_grad_norm) == (None, 1.0)
    assert first.schedule == Schedule("constant", 0, 9)
    assert second.schedule == Schedule("linear", 2, 9)
    assert [config.is_trainable(agent) for agent in (0, 1)] == [True, False]


@pytest.mark.parametrize(
    ("settings", "most", "total"),
    [
        ({}, 40, 40),
        ({}, None, None),
        ({"max_steps": 10}, 40, 10),
        ({"max_steps": 50}, 40, 40),
        ({"max_steps": 10}, None, 10),
        ({"max_steps": 10, "lr_total_steps": 30}, 40, 30),
    ],
)
def test_rates_come_down_over_the_most_steps_unless_a_number_is_given(
    settings: dict[str, Any], most: int | None, total: int | None
) -> None:
    assert MAGRPOConfig(**settings).total_steps(most) == total


def test_a_warm_up_ratio_is_of_all_steps() -> None:
    config = MAGRPOConfig(warmup_ratio=0.25, lr_scheduler_type="cosine", lr_min_ratio=0.1)
    schedule = config.optimizer_settings(0, 0.1, 10).schedule
    assert schedule == Schedule("cosine", 3, 10, 0.1)
    with pytest.raises(FieldError, match="lr_total_steps"):
        config.optimizer_settings(0, 0.1, None)


def test_a_stop_rule_is_whole_or_not_there() -> None:
    assert MAGRPOConfig().stop_rule is None
    config = MAGRPOConfig(
        stop_metric="loss", stop_value=0.5, stop_patience=3, stop_min_delta=0.1, stop_mode="min"
    )
    assert config.stop_rule == StopRule("loss", 0.5, 3, 0.1, larger_is_better=False)
    with pytest.raises(ValueError, match="stop_metric: got none"):
        MAGRPOConfig(stop_patience=2)
    with pytest.raises(ValueError, match="stop_value and stop_patience: got neither"):
        MAGRPOConfig(stop_metric="loss")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"max_grad_norm": 0}, "max_grad_norm"),
        ({"max_grad_norm": [1.0, -1.0]}, r"max_grad_norm\.list\.1"),
        ({"lr_scheduler_type": "polynomial"}, "'constant', 'linear' or 'cosine'"),
        ({"adam_beta2": 1.0}, "adam_beta2"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps"),
        ({"max_steps": 0}, "max_steps"),
        ({"compute_dtype": "bfloat16", "wire_dtype": "float32"}, "wanted wire_dtype 'bfloat16'"),
        ({"compute_dtype": "float16"}, "compute_dtype"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        MAGRPOConfig(**settings)


def test_a_list_has_one_value_per_agent_and_one_for_agents_that_share() -> None:
    alone, shared = ((0,), (1,)), ((0, 1),)
    assert of_agent((1, 2), 1) == 2
    assert of_agent(3, 1) == 3
    check_per_agent("x", 1.0, 2, alone)
    check_per_agent("x", (1.0, 2.0), 2, alone)
    check_per_agent("x", (1.0, 1.0), 2, shared)
    with pytest.raises(FieldError, match="x: got 3 of them, wanted one, or 2, one per agent"):
        check_per_agent("x", (1, 2, 3), 2, alone)
    with pytest.raises(FieldError, match="as shared_policy has one optimiser"):
        check_per_agent("x", (1.0, 2.0), 2, shared)


def test_every_setting_that_may_differ_by_agent_takes_a_list() -> None:
    for name in PER_AGENT:
        default = getattr(MAGRPOConfig(), name)
        assert getattr(MAGRPOConfig(**{name: [default, default]}), name) == (default, default)
