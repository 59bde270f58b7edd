"""What CoMLRL's `evaluate` says, and what it does to training. Peer side only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from benchmarks.parity_parts import cases, models
from benchmarks.parity_parts.cases import Case
from benchmarks.parity_parts.comlrl_trainer import Recorder, StubModel, make_trainer
from benchmarks.parity_parts.scenarios import TWO_TURNS, answer_of_turn, numbered, small_case


def _evaluated(case: Case, **given: Any) -> dict[str, float]:
    """The figures of an evaluation of all tasks of a case."""
    stubs = [StubModel() for _ in range(case.num_agents)]
    trainer = make_trainer(case, stubs, models.tokenizer(), **given)
    trainer.eval_dataset = trainer.train_dataset
    figures: dict[str, float] = trainer.evaluate(len(case.tasks))
    return figures


def evaluations() -> dict[str, dict[str, float]]:
    """The figures of every case."""
    return {case.name: _evaluated(case) for case in cases.evaluations()}


def evaluation_discount() -> float:
    figures = _evaluated(
        small_case(num_turns=2),
        answers=answer_of_turn,
        reward=numbered(*TWO_TURNS),
        discount=0.5,
    )
    return figures["eval/turn_1/expected_return"]


def evaluation_draws(folder: Path) -> float:
    without, evaluated = (_trained(folder, interval) for interval in (0, 1))
    pairs = zip(_weights(without), _weights(evaluated), strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs)


def _trained(folder: Path, eval_interval: int) -> Recorder:
    """After a run that samples by itself and evaluates every so many prompts, 0 never."""
    trainer = make_trainer(
        small_case(tasks=("t0", "t1")),
        [models.load(models.folder(folder, 0))],
        models.tokenizer(),
        real_generate=True,
        eval_interval=eval_interval,
    )
    trainer.eval_dataset = trainer.train_dataset
    torch.manual_seed(0)
    trainer.train()
    return trainer


def _weights(trainer: Recorder) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in trainer.agents[0].parameters()]
