"""`MAGRPOTrainer` takes what CoMLRL's takes, and refuses by name what it cannot do."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.models import save_model, tiny_model, tiny_tokenizer

from antiphon.clients.types import FieldError
from antiphon.learner import MAGRPOConfig, MAGRPOTrainer
from antiphon.learner.record.run_folder import RunFolder
from antiphon.services.common.errors import UserFunctionError

ONE_TURN = MAGRPOConfig(num_turns=1)


def reward(*completions: list[str]) -> list[float]:
    return [0.0] * len(completions[0])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def trainer(own: Any, number: int = 2, /, **options: Any) -> MAGRPOTrainer:
    given: dict[str, Any] = {
        "agents": [tiny_model(own, seed) for seed in range(number)],
        "tokenizer": own,
        "reward_func": reward,
        "train_dataset": [{"prompt": "red"}],
        "args": ONE_TURN,
    }
    return MAGRPOTrainer(**{**given, **options})


def test_parameters_have_comlrls_names_order_and_defaults() -> None:
    parameters = [
        p
        for p in inspect.signature(MAGRPOTrainer).parameters.values()
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    assert [p.name for p in parameters] == [
        "agent_model",
        "agents",
        "num_agents",
        "tokenizer",
        "model_config",
        "train_dataset",
        "eval_dataset",
        "reward_func",
        "reward_processor",
        "formatters",
        "external_transition",
        "wandb_config",
        "eval_logger",
        "eval_aggregator",
        "args",
    ]
    assert [p.default for p in parameters] == [None, None, 2, *[None] * 12]


def test_the_agents_given_are_the_agents_trained(tokenizer: Any) -> None:
    models = [tiny_model(tokenizer, seed) for seed in range(2)]
    made = trainer(tokenizer, agents=models)
    assert all(a is b for a, b in zip(made.agents, models, strict=True))
    assert made.tokenizers[0] is made.tokenizers[1] is tokenizer


def test_the_number_of_agents_is_that_of_the_agents_given(tokenizer: Any) -> None:
    """L18: three agents, `num_agents` left at its default."""
    assert trainer(tokenizer, 3).num_agents == 3


@pytest.mark.parametrize(
    "options",
    [{"num_agents": 4}, {"args": ONE_TURN.replace(num_agents=2)}, {"formatters": [str, str]}],
)
def test_a_contradiction_about_the_number_is_an_error_at_start(
    tokenizer: Any, options: dict[str, Any]
) -> None:
    """L18: never an index error deep in the run."""
    with pytest.raises(FieldError):
        trainer(tokenizer, 3, **options)


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({}, 2),
        ({"num_agents": 3}, 3),
        ({"args": ONE_TURN.replace(num_agents=4)}, 4),
        ({"num_agents": 3, "args": ONE_TURN.replace(num_agents=3)}, 3),
    ],
)
def test_one_name_for_all_makes_as_many_agents_as_are_asked_for(
    tokenizer: Any, tmp_path: Path, options: dict[str, Any], number: int
) -> None:
    folder = save_model(tmp_path, tiny_model(tokenizer, 0), tokenizer)
    made = trainer(tokenizer, agents=None, agent_model=str(folder), tokenizer=None, **options)
    assert made.num_agents == len(made.agents) == number
    assert len({id(agent) for agent in made.agents}) == number
    assert len(made.tokenizers) == number


def test_model_config_says_how_names_are_loaded(tokenizer: Any, tmp_path: Path) -> None:
    folder = save_model(tmp_path, tiny_model(tokenizer, 0), tokenizer)
    config = {
        "torch_dtype": "bfloat16",
        "attn_implementation": "eager",
        "special_tokens": {"additional_special_tokens": ["</s>"]},
    }
    made = trainer(tokenizer, agents=None, agent_model=str(folder), model_config=config)
    assert made.agents[0].dtype is torch.bfloat16
    assert made.agents[0].config._attn_implementation == "eager"
    assert made.tokenizers[0] is not tokenizer


def test_an_unknown_key_of_model_config_is_named(tokenizer: Any) -> None:
    with pytest.raises(FieldError, match=r"model_config\['dtpe'\]"):
        trainer(tokenizer, agents=None, agent_model="x", model_config={"dtpe": "float32"})


def test_a_tokenizer_without_a_pad_token_works_and_is_left_as_it_was(tmp_path: Path) -> None:
    """L15: the user's tokenizer is never changed."""
    bare = tiny_tokenizer(tmp_path, pad=False)
    trainer(bare, model_config={"special_tokens": {"pad_token": "</s>"}})
    assert bare.pad_token is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eval_dataset": "prompts"}, "eval_dataset: got str"),
        ({"eval_dataset": [{"question": "x"}]}, "eval_dataset.*a column 'prompt'"),
        ({"eval_logger": print}, "eval_aggregator: got nothing"),
        ({"wandb_config": {"projct": "p"}}, "wandb_config.projct: got an unknown key"),
        ({"reward_func": None}, "reward_func: got nothing"),
        ({"reward_func": 3}, "reward_func: got int"),
        ({"tokenizer": None}, "tokenizer: got nothing"),
        ({"agents": None}, "agent_model and agents: got neither"),
        ({"agents": None, "agent_model": 3}, "agent_model: got int"),
        ({"train_dataset": None}, "train_dataset: got nothing"),
        ({"train_dataset": [{"question": "x"}]}, "columns question.*'prompt'"),
        ({"args": MAGRPOConfig(num_turns=2)}, "external_transition: got nothing"),
        ({"reward_address": "localhost:1"}, "reward_func: got a function, and reward_address"),
        ({"generation_addresses": ["localhost:1"]}, "generation_addresses.*a list of 2"),
    ],
)
def test_what_is_missing_or_not_offered_is_refused_by_name(
    tokenizer: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(FieldError, match=message):
        trainer(tokenizer, **options)


def test_one_object_for_two_agents_is_refused(tokenizer: Any) -> None:
    model = tiny_model(tokenizer, 0)
    with pytest.raises(FieldError, match=r"agents\[1\]: got the same object as agents\[0\]"):
        trainer(tokenizer, agents=[model, model])


def test_a_reward_for_another_number_of_agents_is_refused_at_start(tokenizer: Any) -> None:
    with pytest.raises(UserFunctionError, match="wanted 2"):
        trainer(tokenizer, reward_func=lambda a, b, c: [0.0])


def test_verbose_may_be_said_in_wandb_config(tokenizer: Any) -> None:
    assert trainer(tokenizer, wandb_config={"verbose": False}).num_agents == 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"resume_from_checkpoint": "nowhere"}, r"resume_from_checkpoint: got .*nowhere"),
        ({"checkpoint_interval": 0}, "checkpoint_interval: got 0"),
        ({"checkpoint_interval": True}, "checkpoint_interval: got True"),
        ({"checkpoint_total_limit": "2"}, "checkpoint_total_limit: got '2'"),
    ],
)
def test_wrong_checkpoint_settings_are_named_and_nothing_is_started(
    tokenizer: Any, options: dict[str, Any], named: str, tmp_path: Path
) -> None:
    made = trainer(tokenizer, run_directory=tmp_path / "runs")
    with pytest.raises(FieldError, match=named):
        made.train(**options)
    assert not (tmp_path / "runs").exists()


def test_every_run_after_an_evaluation_has_an_id_of_its_own(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Services keep the run of an evaluation for a while, so the run that follows has its id."""
    made = trainer(tokenizer, run_directory=tmp_path, eval_dataset=[{"prompt": "blue"}])
    ids: list[str] = []

    def evaluated(_setup: Any, folder: RunFolder, _samples: int) -> dict[str, float]:
        ids.append(folder.run_id)
        return {}

    def trained(_setup: Any, folder: RunFolder, **_: Any) -> None:
        ids.append(folder.run_id)

    monkeypatch.setattr("antiphon.learner.trainer.evaluate", evaluated)
    monkeypatch.setattr("antiphon.learner.trainer.train", trained)
    made.evaluate()
    made.train()
    made.train()
    evaluation, first, second = ids
    assert evaluation == first != second


def test_train_off_the_main_thread_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    made = trainer(tokenizer, run_directory=tmp_path / "runs")
    errors: list[RuntimeError] = []

    def work() -> None:
        try:
            made.train()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"args": {"num_turns": 1}}, r"args: got dict, wanted MAGRPOConfig\(\.\.\.\)"),
        ({"model_config": [1]}, "model_config: got list, wanted a mapping"),
        ({"run_directory": 3}, "run_directory: got int, wanted a path"),
        ({"run_name": "a/b"}, "run_name: got 'a/b', wanted the name of a folder"),
        ({"server": {"port": 1}}, "server: got dict, wanted ServerSettings"),
        ({"threads": -1}, "threads: got -1, wanted a whole number, 1 or more"),
        ({"num_agents": "2"}, "num_agents: got '2', wanted a whole number"),
        ({"agents": [1, 2]}, r"agents\[0\]: got int, wanted a model's name"),
        ({"reward_func": None, "reward_address": 3}, "address: got int, wanted a text"),
        (
            {"args": MAGRPOConfig(num_turns=1, agent_devices="banana")},
            "agent_devices: got 'banana', wanted \"auto\", or a device",
        ),
        (
            {"args": MAGRPOConfig(num_turns=1, agent_devices="cuda:999")},
            "agent_devices: got 'cuda:999', wanted one of the",
        ),
    ],
)
def test_arguments_of_another_kind_are_refused_by_name(
    tokenizer: Any, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(FieldError, match=told):
        trainer(tokenizer, **options)


def test_a_dataset_without_rows_by_number_is_refused_with_the_way_out(tokenizer: Any) -> None:
    class Frame:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, column: object) -> object:
            raise KeyError(column)

    with pytest.raises(FieldError, match=r"train_dataset: got Frame.*Dataset\.from_pandas"):
        trainer(tokenizer, train_dataset=Frame()).train()
