"""Whole runs of `MAGRPOTrainer`, with generation services of their own, nothing scripted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.parity_parts import models, script
from benchmarks.results import require
from datasets import Dataset

from antiphon.learner import MAGRPOConfig, MAGRPOTrainer

ROWS = [{"prompt": task} for task in script.TASKS[:2]]


def _trained(folder: Path, *, agents: int = 1, eval_interval: int = 0, **given: Any) -> Any:
    """After a run of one turn."""
    trainer = MAGRPOTrainer(
        agents=[models.load(models.folder(folder, agent)) for agent in range(agents)],
        tokenizer=models.tokenizer(),
        reward_func=script.reward,
        args=MAGRPOConfig(
            num_train_epochs=1,
            agent_learning_rate=1e-3,
            num_generations=2,
            max_new_tokens=8,
            temperature=1.0,
            top_p=None,
            top_k=None,
            num_turns=1,
            eval_interval=eval_interval,
            wire_dtype="float32",
        ),
        wandb_config={"verbose": False},
        run_directory=folder / "runs",
        **{"train_dataset": ROWS, "eval_dataset": ROWS, **given},
    )
    trainer.train()
    return trainer


def three_agents(folder: Path) -> str:
    require(_trained(folder, agents=3).num_agents == 3, "not three agents were trained")
    return "none"


def iterable(folder: Path) -> str:
    _trained(folder, train_dataset=Dataset.from_list(ROWS).to_iterable_dataset())
    return "none"


def evaluation_draws(folder: Path) -> float:
    without, evaluated = (_trained(folder, eval_interval=interval) for interval in (0, 1))
    trained = _gap(without.agents[0], models.load(models.folder(folder, 0)))
    require(trained > 0, "the run without evaluation trained nothing")
    return _gap(without.agents[0], evaluated.agents[0])


def _gap(one: Any, other: Any) -> float:
    """The largest difference of a weight of two models."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)
