"""One set of weights that plays every agent, or writes the joint answer of all, in real runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.integration.learner.test_algorithms import (
    ROWS,
    SMALL,
    copies,
    letters,
    metrics,
    moved,
    rollouts,
    run,
    summary_of,
)
from tests.support import run_folders
from tests.support.models import tiny_folder, tiny_model, tiny_tokenizer

from antiphon.clients.types import FieldError
from antiphon.learner import (
    CentralizedMAGRPOConfig,
    CentralizedMAGRPOTrainer,
    CentralizedParseError,
    MAGRPOConfig,
    MAGRPOTrainer,
)
from antiphon.learner.config.run_file import load_run_config
from antiphon.learner.run.toml_run import train_from_config


def roles() -> list[Any]:
    return [
        lambda item: f"one {item['prompt']}",
        lambda item: f"two {item['prompt']}",
        lambda item: f"three {item['prompt']}",
    ]


def test_a_shared_policy_is_one_set_of_weights_that_plays_every_agent(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    model = tiny_model(tokenizer, 0)
    before = copies(model)
    trainer = run(
        MAGRPOTrainer,
        tmp_path,
        agents=[model],
        num_agents=3,
        formatters=roles(),
        args=MAGRPOConfig(**SMALL, shared_policy=True),
    )
    assert trainer.agents == [model] * 3
    assert moved(model, before)
    rows = rollouts(trainer)
    assert rows[0]["prompts"] == ["one red green", "two red green", "three red green"]
    assert len(set(rows[0]["texts"])) > 1  # every role has seeds of its own
    figures = metrics(trainer)
    # 2 tasks of one node each; 3 agents' groups in one buffer of 2: 3 steps of 2 entries.
    assert run_folders.total(figures, "agent_0/steps") == 3
    assert run_folders.total(figures, "agent_0/live_nodes") == 6
    assert not any(name.startswith("agent_1/steps") for row in figures for name in row)
    assert trainer.run_directory is not None
    summary = summary_of(trainer.run_directory)
    assert summary["optimizer_steps"] == [3, 3, 3]
    assert len(set(summary["weights_versions"])) == 1
    trainer.save_model(tmp_path / "saved")
    assert [p.name for p in (tmp_path / "saved").iterdir()] == ["agent_0"]


def test_a_shared_policy_from_a_run_file_on_services_of_its_own(
    tmp_path: Path, processes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas of one set of weights serve three agents."""
    folder = tiny_folder(tmp_path / "model")
    services = [
        processes.serve(f"replica_{n}", "generation", "--model", str(folder), "--threads", "1")
        for n in range(2)
    ]
    addresses = [service.address() for service in services]
    (tmp_path / "shared_tasks.py").write_text(
        "def reward(a, b, c):\n    return [float(len(a[0] + b[0] + c[0]))]\n"
        "def one(item):\n    return 'one ' + item['prompt']\n"
        "def two(item):\n    return 'two ' + item['prompt']\n"
    )
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "run.toml"
    file.write_text(
        f"""
        [magrpo]
        num_agents = 3
        shared_policy = true
        num_turns = 1
        num_train_epochs = 1
        num_generations = 2
        max_new_tokens = 6
        temperature = 1.0
        top_k = "none"
        top_p = "none"
        agent_learning_rate = 1e-2
        [[agents]]
        model = "{folder}"
        addresses = {addresses}
        [reward]
        function = "shared_tasks:reward"
        [formatters]
        functions = ["shared_tasks:one", "shared_tasks:two", "shared_tasks:one"]
        [dataset]
        prompts = ["red green", "one two"]
        [run]
        directory = "{tmp_path / "runs"}"
        """
    )
    train_from_config(load_run_config(file))
    run_folder = run_folders.find(tmp_path / "runs")
    rows = pq.read_table(run_folder / "rollouts").to_pylist()
    assert rows[0]["prompts"] == ["one red green", "two red green", "one red green"]
    assert {path.name for path in run_folder.glob("agent_*")} == {"agent_0"}
    assert summary_of(run_folder)["weights_versions"] == [3, 3, 3]


class Halves:
    """The first half of the words is the first role's answer; a text of one word is no answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, Any], list[str]]] = []

    def build_prompt(self, batch_item: dict[str, Any], agent_prompts: Sequence[str]) -> str:
        self.asked.append((dict(batch_item), list(agent_prompts)))
        batch_item.clear()  # a copy: the run's own row stays
        return " ".join(agent_prompts)

    def parse_completion(
        self, completion: str, batch_item: dict[str, Any], num_agents: int
    ) -> list[str]:
        words = completion.split()
        if len(words) < 2:
            raise CentralizedParseError("one word")
        half = len(words) // 2
        return [" ".join(words[:half]), " ".join(words[half:])]


def test_a_centralised_model_writes_the_joint_answer_of_all_roles(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    model, adapter = tiny_model(tokenizer, 0), Halves()
    before = copies(model)
    scored: list[tuple[tuple[str, str], list[str]]] = []
    followed: list[list[list[str]]] = []

    def reward(a: list[str], b: list[str], prompts: list[str]) -> list[float]:
        scored.append(((a[0], b[0]), prompts))
        return [float(len(a[0]) - len(b[0]))]

    def transition(
        prompt: str, agent_completions: list[str], prompt_history_per_agent: list[list[str]]
    ) -> list[str]:
        followed.append(prompt_history_per_agent)
        return [f"again {text or 'a'}" for text in agent_completions]

    trainer = run(
        CentralizedMAGRPOTrainer,
        tmp_path,
        agents=[model],
        num_agents=2,
        centralized_adapter=adapter,
        reward_func=reward,
        external_transition=transition,
        formatters=roles()[:2],
        args=CentralizedMAGRPOConfig(**{**SMALL, "num_turns": 2}),
    )
    assert trainer.agents == [model]
    assert moved(model, before)
    rows = rollouts(trainer)
    assert rows[0]["prompts"] == ["one red green two red green"]
    assert ({"prompt": "red green"}, ["one red green", "two red green"]) in adapter.asked
    unsplit = 0
    for row in rows:
        words = row["texts"][0].split()
        half = len(words) // 2
        wanted = ["", ""] if len(words) < 2 else [" ".join(words[:half]), " ".join(words[half:])]
        assert row["role_texts"] == wanted
        assert row["reward"] == len(wanted[0]) - len(wanted[1])
        unsplit += len(words) < 2
    assert sorted(tuple(row["role_texts"]) for row in rows) == sorted(pair for pair, _ in scored)
    assert all(
        history == [["one red green"], ["two red green"]]
        or history == [["one one two three"], ["two one two three"]]
        for history in followed
    )
    second = next(row for row in rows if row["turn"] == 2)
    parent = next(
        row
        for row in rows
        if row["row"] == second["row"]
        and row["turn"] == 1
        and [row["joint_action"]] == second["path"]
    )
    # The formatters write the roles' later prompts too, which the adapter joins.
    assert second["prompts"] == [
        " ".join(
            f"{role} again {text or 'a'}"
            for role, text in zip(("one", "two"), parent["role_texts"], strict=True)
        )
    ]
    figures = metrics(trainer)
    counted = sum(run_folders.total(figures, f"turn_{turn}/unsplit_completions") for turn in (1, 2))
    assert counted == unsplit


def test_what_an_adapter_gives_wrongly_is_an_error_that_names_it(tmp_path: Path) -> None:
    class Short(Halves):
        def parse_completion(
            self, completion: str, batch_item: dict[str, Any], num_agents: int
        ) -> list[str]:
            return [completion]

    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    with pytest.raises(FieldError, match=r"Short.parse_completion.*wanted a list of 2 texts"):
        run(
            CentralizedMAGRPOTrainer,
            tmp_path,
            agents=[tiny_model(tokenizer, 0)],
            centralized_adapter=Short(),
            args=CentralizedMAGRPOConfig(**SMALL),
        )


def test_a_shared_policy_with_a_reference_resumes_to_the_bit(tmp_path: Path) -> None:
    """The reference is the model that the run began with, not the one that it goes on from."""
    settings = {
        **SMALL,
        "shared_policy": True,
        "reference_kl_enabled": True,
        "reference_kl_coef": 0.5,
        "rollout_buffer_size": 3,
    }
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")

    def trained(name: str, epochs: int, resume: Path | None = None) -> MAGRPOTrainer:
        trainer = MAGRPOTrainer(
            agents=[tiny_model(tokenizer, 0)],
            num_agents=2,
            tokenizer=tokenizer,
            formatters=roles()[:2],
            reward_func=letters,
            train_dataset=ROWS,
            run_directory=tmp_path / name,
            wandb_config={"verbose": False},
            args=MAGRPOConfig(**{**settings, "num_train_epochs": epochs}),
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = trained("whole", 3)
    first = trained("parts", 1)
    rest = trained("parts", 3, first.run_directory)
    assert rest.run_directory == first.run_directory
    assert not moved(rest.agents[0], copies(whole.agents[0]))
    assert moved(rest.agents[0], copies(first.agents[0]))
    assert rest.run_directory is not None
    assert metrics(rest)[-1]["turn_1/reference_kl_mean"] == pytest.approx(
        metrics(whole)[-1]["turn_1/reference_kl_mean"], rel=1e-6
    )
