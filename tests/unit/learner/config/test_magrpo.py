"""MAGRPOConfig: CoMLRL's names and defaults, checks when it is made."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from antiphon.clients.types import FieldError, SamplingParameters, TensorDtype
from antiphon.learner.config.algorithms import MARLOOConfig
from antiphon.learner.config.magrpo import (
    MAGRPOConfig,
    resolve_devices,
    resolve_num_agents,
    stated_num_agents,
)

COMLRL_DEFAULTS = {
    "num_train_epochs": 20,
    "agent_learning_rate": 5e-6,
    "logging_steps": 50,
    "num_agents": 2,
    "parallel_training": "none",
    "agent_devices": None,
    "num_generations": 4,
    "max_new_tokens": 256,
    "temperature": 0.6,
    "top_p": 0.6,
    "top_k": 50,
    "num_turns": 2,
    "discount": 1.0,
    "joint_mode": "aligned",
    "early_termination_threshold": -0.2,
    "external_prompt_passthrough": False,
    "eval_interval": 16,
    "eval_num_samples": 4,
    "eval_batch_size": 1,
    "rollout_buffer_size": 2,
    "train_batch_size": 2,
    "advantage_normalization": True,
    "advantage_mode": "mean",
    "reference_kl_enabled": False,
    "reference_kl_coef": 0.1,
    "reference_devices": None,
}


@pytest.mark.parametrize(("name", "value"), COMLRL_DEFAULTS.items())
def test_default_is_comlrls(name: str, value: object) -> None:
    assert getattr(MAGRPOConfig(), name) == value


def test_a_comlrl_script_makes_its_config() -> None:
    config = MAGRPOConfig(
        num_turns=2,
        num_train_epochs=2,
        num_generations=4,
        max_new_tokens=64,
        logging_steps=1,
        early_termination_threshold=0.9,
    )
    assert config.early_termination_threshold == 0.9
    assert config.max_new_tokens == 64


@pytest.mark.parametrize("mode", ["aligned", "cross"])
def test_joint_mode_has_one_spelling_per_mode(mode: str) -> None:
    assert MAGRPOConfig(joint_mode=mode).joint_mode == mode


@pytest.mark.parametrize("mode", ["crossed", "Cross", "x", "ALIGNED", "", " cross"])
def test_other_spellings_of_joint_mode_are_refused(mode: str) -> None:
    """L9: one spelling accepted; anything else is refused when the config is made."""
    with pytest.raises(ValidationError, match=r"(?s)joint_mode.*'aligned' or 'cross'"):
        MAGRPOConfig(joint_mode=mode)


@pytest.mark.parametrize("none", [None, "none"])
def test_none_turns_every_filter_off(none: object) -> None:
    """L11: None means off, for every sampling parameter."""
    config = MAGRPOConfig(top_k=none, top_p=none, temperature=1.0, max_new_tokens=8)
    assert config.sampling == SamplingParameters(
        temperature=1.0, top_k=None, top_p=None, max_new_tokens=8
    )


def test_none_turns_early_termination_off() -> None:
    assert MAGRPOConfig(early_termination_threshold=None).early_termination_threshold is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_train_epochs", 0),
        ("num_agents", 0),
        ("num_generations", 1),
        ("num_turns", 0),
        ("max_new_tokens", 0),
        ("temperature", 1e-300),
        ("top_k", 2**32),
        ("score_timeout", 1e10),
        ("generate_timeout", 1e308),
        ("temperature", 0.0),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", 0),
        ("top_k", 2.5),
        ("discount", float("inf")),
        ("rollout_buffer_size", 0),
        ("train_batch_size", 0),
        ("logging_steps", 0),
        ("advantage_mode", "median"),
        ("wire_dtype", "float16"),
        ("clip_ratio_low", 1.0),
        ("seed", -1),
        ("score_timeout", 0),
        ("on_score_failure", "ignore"),
        ("on_missing_score", "fail"),
    ],
)
def test_a_bad_value_is_refused_by_field_and_value(name: str, value: object) -> None:
    with pytest.raises(ValidationError) as error:
        MAGRPOConfig(**{name: value})
    assert name in str(error.value)
    assert str(value) in str(error.value)


def test_the_watchdog_outlasts_every_deadline() -> None:
    """S5: what a call may take is no standstill."""
    assert MAGRPOConfig().progress_timeout == 3600
    assert MAGRPOConfig(score_timeout=7200).progress_timeout == 14400
    assert MAGRPOConfig(score_timeout=7200).replace(score_timeout=60).progress_timeout == 3600
    assert MAGRPOConfig(progress_timeout=901).progress_timeout == 901
    assert MAGRPOConfig(progress_timeout=None, score_timeout=7200).progress_timeout is None
    with pytest.raises(ValidationError, match="got 900, wanted more than generate_timeout"):
        MAGRPOConfig(progress_timeout=900)


def test_what_stops_at_a_missing_reward_stops_at_one_that_fails() -> None:
    assert MAGRPOConfig(on_score_failure="missing").on_missing_score == "drop"
    assert MAGRPOConfig(on_missing_score="stop").on_score_failure == "stop"
    with pytest.raises(ValidationError, match="'stop' with on_score_failure 'missing', wanted"):
        MAGRPOConfig(on_missing_score="stop", on_score_failure="missing")


def test_an_unknown_keyword_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValidationError, match="no field 'num_turn'; did you mean 'num_turns'"):
        MAGRPOConfig(num_turn=2)


@pytest.mark.parametrize(
    ("value", "read"),
    [(None, "none"), ("none", "none"), ("null", "none"), ("mp", "mp"), (" MP", "mp")],
)
def test_comlrls_spellings_of_parallel_training_are_taken(value: Any, read: str) -> None:
    assert MAGRPOConfig(parallel_training=value).parallel_training == read


def test_another_parallel_training_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"(?s)parallel_training.*'none' or 'mp'"):
        MAGRPOConfig(parallel_training="ddp")  # type: ignore[arg-type]


def test_train_batch_size_follows_the_buffer_unless_given() -> None:
    assert MAGRPOConfig(rollout_buffer_size=6).minibatch_size == 6
    assert MAGRPOConfig(rollout_buffer_size=6, train_batch_size=3).minibatch_size == 3
    assert MAGRPOConfig(rollout_buffer_size=6).replace(rollout_buffer_size=4).minibatch_size == 4


def test_replace_checks_as_the_constructor_does() -> None:
    with pytest.raises(ValidationError, match="num_turns"):
        MAGRPOConfig().replace(num_turns=0)


def test_a_config_cannot_be_changed_after_it_was_checked() -> None:
    config = MAGRPOConfig()
    with pytest.raises(ValidationError, match="frozen"):
        config.num_turns = 0


def test_a_config_survives_json() -> None:
    config = MAGRPOConfig(top_k=None, agent_devices=["cpu", "cuda:0"], train_batch_size=1)
    assert MAGRPOConfig.model_validate_json(config.model_dump_json()) == config


def test_wire_dtype_is_the_contracts() -> None:
    assert MAGRPOConfig(wire_dtype="float32").tensor_dtype is TensorDtype.FLOAT32


def test_every_field_says_what_it_is() -> None:
    assert [n for n, f in MAGRPOConfig.model_fields.items() if not f.description] == []


def test_the_number_of_agents_is_what_was_given() -> None:
    """L18: N is what was given; three agents and a default of two make three."""
    config = MAGRPOConfig()
    assert resolve_num_agents({"agents": 3, "args.num_agents": stated_num_agents(config)}) == 3


def test_contradicting_numbers_of_agents_are_an_error() -> None:
    """L18: a contradiction is an error at start."""
    config = MAGRPOConfig(num_agents=2)
    with pytest.raises(FieldError, match=r"args.num_agents: got 2, wanted 3.*agents gives"):
        resolve_num_agents({"agents": 3, "args.num_agents": stated_num_agents(config)})


@pytest.mark.parametrize(
    ("spec", "cuda", "expected"),
    [
        (None, 0, ("cpu", "cpu", "cpu")),
        ("auto", 2, ("cuda:0", "cuda:1", "cuda:0")),
        ("cuda:1", 0, ("cuda:1", "cuda:1", "cuda:1")),
        (["cpu"], 4, ("cpu", "cpu", "cpu")),
        (["a", "b", "c"], 0, ("a", "b", "c")),
    ],
)
def test_devices_are_one_per_agent(spec: object, cuda: int, expected: tuple[str, ...]) -> None:
    assert resolve_devices(spec, 3, cuda_devices=cuda) == expected


def test_a_device_list_of_another_length_is_refused() -> None:
    with pytest.raises(FieldError, match="agent_devices: got 2 devices, wanted 1 or 3"):
        resolve_devices(["cpu", "cpu"], 3)


def test_a_reference_kl_is_a_penalty_in_the_returns_or_in_the_loss_never_in_both() -> None:
    off = MAGRPOConfig(reference_kl_coef=0.5)
    on = MAGRPOConfig(reference_kl_enabled=True, reference_kl_coef=0.5)
    in_loss = on.replace(reference_kl_mode="loss")
    coefs = [(c.return_kl_coef, c.loss_kl_coef) for c in (off, on, in_loss)]
    assert coefs == [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5)]
    with pytest.raises(ValidationError, match=r"(?s)reference_kl_mode.*'return' or 'loss'"):
        MAGRPOConfig(reference_kl_mode="both")


def test_policies_are_one_per_agent_or_one_for_all() -> None:
    assert MAGRPOConfig().policies(3) == ((0,), (1,), (2,))
    assert MAGRPOConfig(shared_policy=True).policies(3) == ((0, 1, 2),)


def test_learning_rates_are_one_for_all_or_one_per_agent() -> None:
    assert [MAGRPOConfig().learning_rate(agent) for agent in range(2)] == [5e-6, 5e-6]
    several = MAGRPOConfig(agent_learning_rate=[1e-3, 2e-3])
    assert [several.learning_rate(agent) for agent in range(2)] == [1e-3, 2e-3]
    with pytest.raises(ValidationError, match="agent_learning_rate"):
        MAGRPOConfig(agent_learning_rate=[1e-3, -1.0])


def test_an_unknown_keyword_of_another_algorithm_names_that_algorithms_config() -> None:
    with pytest.raises(ValidationError, match="MARLOOConfig has no field 'num_turn'"):
        MARLOOConfig(num_turn=2)
