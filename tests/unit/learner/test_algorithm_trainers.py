"""The trainers beside `MAGRPOTrainer`: their settings, one model for several agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.models import save_model, tiny_model, tiny_tokenizer

import antiphon.learner
from antiphon.clients.types import FieldError
from antiphon.learner import (
    CentralizedMAGRPOConfig,
    CentralizedMAGRPOTrainer,
    MAGRPOConfig,
    MAGRPOTrainer,
    MAREINFORCEConfig,
    MAREINFORCETrainer,
    MAReMaxConfig,
    MAReMaxTrainer,
    MARLOOConfig,
    MARLOOTrainer,
    TaggedAdapter,
)
from antiphon.services.common.errors import UserFunctionError

SHARED = MAGRPOConfig(num_turns=1, shared_policy=True)
ALGORITHMS = [
    (MARLOOTrainer, MARLOOConfig, "rloo"),
    (MAReMaxTrainer, MAReMaxConfig, "max"),
    (MAREINFORCETrainer, MAREINFORCEConfig, "raw"),
]


def reward(*completions: list[str]) -> list[float]:
    return [0.0] * len(completions[0])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def trainer(
    own: Any, kind: type[MAGRPOTrainer] = MAGRPOTrainer, number: int = 1, **options: Any
) -> MAGRPOTrainer:
    given: dict[str, Any] = {
        "tokenizer": own,
        "reward_func": reward,
        "external_transition": lambda prompt, num_agents: [prompt] * num_agents,
        "train_dataset": [{"prompt": "red"}],
    }
    if "agent_model" not in options:
        given["agents"] = [tiny_model(own, seed) for seed in range(number)]
    return kind(**{**given, **options})


def test_every_public_name_can_be_had() -> None:
    for name in antiphon.learner.__all__:
        assert getattr(antiphon.learner, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'MAPPOTrainer'"):
        antiphon.learner.MAPPOTrainer  # noqa: B018


@pytest.mark.parametrize(("kind", "config", "mode"), ALGORITHMS)
def test_an_algorithm_fixes_its_baseline(
    tokenizer: Any, kind: type[MAGRPOTrainer], config: type[MAGRPOConfig], mode: str
) -> None:
    assert config().advantage_mode == mode
    assert config().model_dump(exclude={"advantage_mode"}) == MAGRPOConfig().model_dump(
        exclude={"advantage_mode"}
    )
    assert trainer(tokenizer, kind, 2).args == config()
    given = config(num_turns=1, seed=3)
    assert trainer(tokenizer, kind, 2, args=given).args == given
    same = MAGRPOConfig(advantage_mode=mode)
    assert trainer(tokenizer, kind, 2, args=same).args == same
    for wrong in (MAGRPOConfig(), *(c() for _, c, m in ALGORITHMS if m != mode)):
        with pytest.raises(FieldError, match=rf"args: got .*wanted {config.__name__}"):
            trainer(tokenizer, kind, 2, args=wrong)
    assert type(given.replace(seed=4)) is config


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 2),
        ({"num_agents": 3}, 3),
        ({"args": SHARED.replace(num_agents=4)}, 4),
        ({"num_agents": 3, "args": SHARED.replace(num_agents=3)}, 3),
        ({"num_agents": 1}, 1),
    ],
)
def test_a_shared_policy_is_given_once_and_plays_as_many_agents_as_are_said(
    tokenizer: Any, options: dict[str, Any], count: int
) -> None:
    made = trainer(tokenizer, **{"args": SHARED, **options})
    assert made.num_agents == count
    assert made.agents == [made.agents[0]] * count
    assert len(made.tokenizers) == count


def test_a_shared_policy_may_be_given_once_per_agent_or_by_name(
    tokenizer: Any, tmp_path: Path
) -> None:
    model = tiny_model(tokenizer, 0)
    made = trainer(tokenizer, agents=[model] * 3, args=SHARED)
    assert (made.num_agents, made.agents) == (3, [model] * 3)
    folder = save_model(tmp_path / "model", model, tokenizer)
    made = trainer(tokenizer, agent_model=str(folder), tokenizer=None, num_agents=3, args=SHARED)
    assert made.agents == [made.agents[0]] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"number": 2}, r"agents\[1\]: got another model"),
        ({"num_agents": 3, "args": SHARED.replace(num_agents=4)}, "args.num_agents: got 4"),
        ({"formatters": [lambda item: "a"] * 3}, "formatters: got 3 of them"),
        (
            {"args": SHARED.replace(agent_learning_rate=[1e-3, 2e-3])},
            "agent_learning_rate: got .*one value|one number",
        ),
    ],
)
def test_what_one_set_of_weights_cannot_be_is_refused(
    tokenizer: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(FieldError, match=message):
        trainer(tokenizer, **{"args": SHARED, **options})


def test_a_centralised_model_answers_for_as_many_roles_as_are_said(tokenizer: Any) -> None:
    made = trainer(
        tokenizer, CentralizedMAGRPOTrainer, num_agents=3, centralized_adapter=TaggedAdapter()
    )
    assert made.args == CentralizedMAGRPOConfig()
    assert made.args.num_turns == 1
    assert (made.num_agents, len(made.agents)) == (3, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "centralized_adapter: got nothing"),
        ({"centralized_adapter": object()}, "centralized_adapter: got object without build_prompt"),
        ({"number": 2, "centralized_adapter": TaggedAdapter()}, r"agents\[1\]: got another model"),
        (
            {"args": MAGRPOConfig(), "centralized_adapter": TaggedAdapter()},
            "CentralizedMAGRPOConfig",
        ),
        (
            {"reward_func": lambda a: [0.0], "centralized_adapter": TaggedAdapter()},
            "got 1 parameter",
        ),
    ],
)
def test_what_a_centralised_trainer_needs_is_asked_for(
    tokenizer: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, UserFunctionError), match=message):
        trainer(tokenizer, CentralizedMAGRPOTrainer, **options)


def test_other_trainers_take_no_adapter(tokenizer: Any) -> None:
    with pytest.raises(FieldError, match="CentralizedMAGRPOTrainer to use it"):
        trainer(tokenizer, number=2, centralized_adapter=TaggedAdapter())


def test_a_centralised_config_is_of_one_mode() -> None:
    with pytest.raises(ValueError, match=r"(?s)collaboration_mode.*'centralized'"):
        CentralizedMAGRPOConfig(collaboration_mode="decentralized")
