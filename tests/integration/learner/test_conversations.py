"""Chat prompts and conversations through real local services, and what user code sees of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
from tests.support.models import tiny_model, tiny_tokenizer

from antiphon.clients.types import FieldError
from antiphon.learner import MAGRPOConfig, MAGRPOTrainer

SMALL: dict[str, Any] = {
    "num_train_epochs": 1,
    "num_generations": 2,
    "max_new_tokens": 6,
    "temperature": 1.0,
    "top_k": None,
    "top_p": None,
    "early_termination_threshold": None,
}
ASKED = [{"role": "user", "content": "red green"}]
TOLD = [{"role": "user", "content": "again"}]


def trainer_of(directory: Path, template: str | None = "", **options: Any) -> MAGRPOTrainer:
    tokenizer = tiny_tokenizer(directory / "tokenizer")
    tokenizer.chat_template = template or (None if template is None else tokenizer.chat_template)
    given: dict[str, Any] = {
        "agents": [tiny_model(tokenizer, seed) for seed in range(2)],
        "tokenizer": tokenizer,
        "reward_func": lambda a, b: [float(len(a[0]) - len(b[0]))],
        "external_transition": lambda: [TOLD, "again"],
        "train_dataset": [{"prompt": ASKED}],
        "run_directory": directory / "runs",
        "wandb_config": {"verbose": False},
    }
    return MAGRPOTrainer(**{**given, **options})


def test_functions_see_a_chat_as_dicts_and_a_text_as_text(tmp_path: Path) -> None:
    rewarded: list[Any] = []
    told: list[Any] = []

    def reward(a: list[str], b: list[str], prompts: Any, turns: Any) -> list[float]:
        rewarded.append((turns[0], prompts[0]))
        return [float(len(a[0]) - len(b[0]))]

    def transition(prompt: Any, prompt_history_per_agent: Any, turn: int) -> list[Any]:
        told.append((prompt, turn, prompt_history_per_agent))
        return [TOLD, "again"]

    trainer_of(
        tmp_path,
        reward_func=reward,
        external_transition=transition,
        train_dataset=datasets.IterableDataset.from_generator(lambda: iter([{"prompt": ASKED}])),
        args=MAGRPOConfig(**SMALL, num_turns=3, conversation="append", shuffle=True),
    ).train()
    assert set(map(repr, rewarded)) == {repr((1, ASKED)), repr((2, TOLD)), repr((3, TOLD))}
    assert sorted(map(repr, told)) == sorted(
        [repr((ASKED, 1, [[ASKED], [ASKED]]))] * 2
        + [repr((ASKED, 2, [[ASKED, TOLD], [ASKED, "again"]]))] * 4
    )


def test_templated_texts_need_a_template_when_the_trainer_is_made(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"tokenizer of agent 0.*no chat template"):
        trainer_of(tmp_path, None, args=MAGRPOConfig(**SMALL, apply_chat_template=True))


def test_a_system_prompt_per_agent_needs_one_each(tmp_path: Path) -> None:
    args = MAGRPOConfig(**SMALL, apply_chat_template=True, system_prompt=("one", "two", "three"))
    with pytest.raises(FieldError, match="system_prompt: got 3 of them, wanted one, or 2"):
        trainer_of(tmp_path, args=args)
