"""The coding example trains two tiny models by the ready reward and feedback, which are served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.examples.reward_training import ROOT
from tests.support import run_folders
from tests.support.models import save_model, tiny_model, tiny_tokenizer
from tests.support.processes import Processes, command, run
from transformers import AutoModelForCausalLM

# Answers without a blank, so that each is a token and a completion is one of them or empty.
RIGHT = "sum_of_squares=lambda*a:sum((x*x)for(x)in(a[0]))"
SUM_14 = "sum_of_squares=lambda*a:14"
VOWELS_3 = "count_vowels=lambda*a:3"
NO_PYTHON = "("
ANSWERS = (RIGHT, SUM_14, VOWELS_3, NO_PYTHON)
VALUES = {
    ("sum_of_squares", RIGHT): 1.0,
    ("sum_of_squares", SUM_14): 0.1 + 0.2 + 0.7 / 3,
    ("count_vowels", VOWELS_3): 0.1 + 0.2 + 0.7 / 3,
}
FEEDBACK = {
    ("sum_of_squares", SUM_14): "- assert sum_of_squares([]) == 0: got 14, wanted 0",
    ("count_vowels", VOWELS_3): "- assert count_vowels('rhythm') == 0: got 3, wanted 0",
}


def value_of(entry_point: str, helper: str, main: str) -> float:
    """By hand: the main agent's definition counts, or else the helper's."""
    if NO_PYTHON in (helper, main):
        return 0.0
    return VALUES.get((entry_point, main), VALUES.get((entry_point, helper), 0.1))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Begins with answers that are about equally likely."""
    tokenizer = tiny_tokenizer(tmp_path / "model", words=ANSWERS)
    return save_model(tmp_path / "model", tiny_model(tokenizer, 0, spread=0.02), tokenizer)


def test_the_example_trains_by_the_services_that_bring_its_reward_and_feedback(
    processes: Processes, model: Path, tmp_path: Path
) -> None:
    tasks = (ROOT / "examples" / "coding_tasks.jsonl").read_text().splitlines()[:2]
    (tmp_path / "tasks.jsonl").write_text("\n".join(tasks))
    reward = processes.serve(
        "reward", "reward", "antiphon.services.reward.coding:score", "--batch-size", "4"
    )
    feedback = processes.serve(
        "feedback", "transition", "antiphon.services.transition.coding:errors"
    )
    run(command("check", "reward", reward.address(), "--item", tasks[0]))
    settings = (
        f"run.directory={tmp_path / 'runs'}",
        f"agents.0.model={model}",
        f"agents.1.model={model}",
        "reward.function=none",
        f"reward.address={reward.address()}",
        "transition.function=none",
        f"transition.address={feedback.address()}",
        f"dataset.path={tmp_path / 'tasks.jsonl'}",
        "magrpo.num_generations=6",
        "magrpo.max_new_tokens=1",
        "magrpo.temperature=1",
        "magrpo.top_p=none",
        "magrpo.agent_learning_rate=0.001",
    )
    overrides = [word for setting in settings for word in ("--set", setting)]
    processes.antiphon("train", "train", "examples/coding.toml", *overrides, cwd=ROOT).succeed(
        timeout=180
    )

    folder = run_folders.find(tmp_path)
    rows = run_folders.rollout_rows(folder)
    assert_rewarded_and_told(rows, [json.loads(task)["entry_point"] for task in tasks])
    start = list(AutoModelForCausalLM.from_pretrained(model).parameters())
    for agent in (0, 1):
        trained = AutoModelForCausalLM.from_pretrained(folder / f"agent_{agent}").parameters()
        assert any((a.float() != b.float()).any() for a, b in zip(trained, start, strict=True))


def assert_rewarded_and_told(rows: list[dict[str, Any]], entry_points: list[str]) -> None:
    """Every answer has its reward, and those that do not pass are asked for again with why."""
    first = {(row["row"], row["joint_action"]): row for row in rows if row["turn"] == 1}
    second = [row for row in rows if row["turn"] == 2]
    for row in rows:
        value = value_of(entry_points[row["row"]], *row["texts"])
        assert row["reward"] == pytest.approx(value), row["texts"]
    assert {0.0, 0.1, 1.0} < {row["reward"] for row in rows}
    assert {(row["row"], *row["path"]) for row in second} == {
        key for key, row in first.items() if row["reward"] < 1
    }
    told = set()
    for row in second:
        before = first[row["row"], *row["path"]]
        for prompt, asked, answer in zip(
            row["prompts"], before["prompts"], before["texts"], strict=True
        ):
            assert prompt.startswith(f"{asked}\n\nYour last answer was:\n{answer}\n\n")
        known = (entry_points[row["row"]], before["texts"][1])
        if known in FEEDBACK and before["reward"] > 0:
            assert FEEDBACK[known] in row["prompts"][0]
            told.add(known)
    assert told
