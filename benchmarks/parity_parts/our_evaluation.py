"""Our evaluations along single paths, held against what CoMLRL's side wrote down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.parity_parts import cases, models, our_run
from benchmarks.parity_parts.cases import Case
from benchmarks.parity_parts.our_services import on_main_thread
from benchmarks.parity_parts.relations import DISCOUNT, compare_evaluation
from benchmarks.parity_parts.scenarios import TWO_TURNS, answer_of_turn, numbered, small_case

from antiphon.learner.data.tasks import Tasks
from antiphon.learner.evaluation.evaluation import Evaluator, evaluation_shape


def _evaluated(case: Case, discount: float = 1.0, **given: Any) -> Mapping[str, float]:
    """The figures of an evaluation of all tasks of a case."""
    config = our_run.settings_of(case, discount)
    shape = evaluation_shape(config, case.num_agents)
    evaluator = Evaluator(
        config,
        tasks=Tasks([{"prompt": task} for task in case.tasks], name="eval_dataset"),
        rollout=our_run.rollout(case, models.tokenizer(), shape=shape, **given),
        on_main_thread=on_main_thread,
    )
    return asyncio.run(evaluator.evaluate(1, len(case.tasks))).figures


def evaluations(told: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, float]]:
    """The figures of every case."""
    for case in cases.evaluations():
        discounted = _evaluated(case, DISCOUNT)
        yield from compare_evaluation(case, told[case.name], _evaluated(case), discounted)


def evaluation_discount() -> float:
    figures = _evaluated(
        small_case(num_turns=2), 0.5, answers=answer_of_turn, reward=numbered(*TWO_TURNS)
    )
    return figures["eval/turn_1/expected_return"]
