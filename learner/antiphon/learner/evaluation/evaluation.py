"""Evaluates the present policies on the tasks of an evaluation dataset.

Per task either a single path is followed (one sample per agent and turn), or the whole tree is
grown as in training. Either way all turns are followed: `early_termination_threshold`, which saves
training samples, would leave the later turns to the tasks that go badly. A path ends early only
where the transition ends it, its next prompt does not fit the context, or its reward is missing.

Seeds derive from the phase and the number of the evaluation, and what user functions draw from the
process's generators is drawn from a state that is put back afterwards, so training never notices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from antiphon.clients.types import SamplingParameters
from antiphon.learner.checkpoints.random_state import kept_generators
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.data.tasks import Row, Tasks
from antiphon.learner.evaluation.figures import (
    PREFIX,
    EvaluatedTask,
    Evaluation,
    EvaluationFunctions,
    evaluated_task,
    overall,
)
from antiphon.learner.rollout.rollout import Rollout, RolloutShape
from antiphon.learner.rollout.scoring import OnMainThread

OnTask = Callable[[EvaluatedTask], None]


class Evaluator:
    """Runs evaluations.

    Args:
        config: The settings.
        tasks: The evaluation dataset; every evaluation takes its first rows.
        rollout: Grows what `evaluation_shape` says, with seeds and phase of evaluation.
        on_main_thread: Reads the dataset and runs the user's functions.
        functions: The user's own metrics, None for none.
    """

    def __init__(
        self,
        config: MAGRPOConfig,
        *,
        tasks: Tasks,
        rollout: Rollout,
        on_main_thread: OnMainThread,
        functions: EvaluationFunctions | None = None,
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._rollout = rollout
        self._on_main_thread = on_main_thread
        self._functions = functions

    async def evaluate(
        self, number: int, num_samples: int, on_task: OnTask = lambda _: None
    ) -> Evaluation:
        """Evaluate the first tasks of the dataset.

        Args:
            number: Of this evaluation; fixes its randomness.
            num_samples: Most tasks.
            on_task: Told every task once it is done, in order.

        Raises:
            CallError: A call failed for good; a failed score only where `on_score_failure` says
                stop.
            FieldError: A row cannot be carried as it is, a user function gave something odd, or a
                reward is missing where `on_missing_score` says stop.
        """
        start = time.monotonic()
        tasks: list[EvaluatedTask] = []
        with kept_generators():
            rows = self._tasks.epoch()
            while left := min(self._config.eval_batch_size, num_samples - len(tasks)):
                batch = await self._next(rows, left)
                if not batch:
                    break
                grown = await self._rollout.grow(number, batch)
                roots = {root.row: root for root in grown.roots}
                for row in batch:
                    task = evaluated_task(row.task.id, roots.get(row.row), self._config)
                    tasks.append(task)
                    on_task(task)
            own = await self._own_figures(tasks)
        seconds = time.monotonic() - start
        measured = {
            **overall(tasks),
            f"{PREFIX}number": float(number),
            f"{PREFIX}seconds": seconds,
        }
        return Evaluation(number, tuple(tasks), {**own, **measured}, seconds)

    async def _next(self, rows: Iterator[Row], count: int) -> list[Row]:
        batch: list[Row] = await self._on_main_thread(
            lambda: list(islice(rows, count)), self._tasks.name
        )
        return batch

    async def _own_figures(self, tasks: list[EvaluatedTask]) -> dict[str, float]:
        functions = self._functions
        if functions is None:
            return {}
        figures: dict[str, float] = await self._on_main_thread(
            lambda: functions.figures(tasks, self._config.num_turns), functions.name
        )
        return figures


def evaluation_shape(
    config: MAGRPOConfig, num_agents: int, policies: tuple[tuple[int, ...], ...] = ()
) -> RolloutShape:
    """How an evaluation's trees grow: one path, or as wide as in training; never ended early."""
    path = config.eval_mode == "path"
    return RolloutShape(
        num_agents,
        num_generations=1 if path else config.num_generations,
        num_turns=config.num_turns,
        joint_mode="aligned" if path else config.joint_mode,
        early_termination_threshold=None,
        max_new_tokens=config.max_new_tokens,
        policies=policies,
    )


def evaluation_sampling(config: MAGRPOConfig) -> SamplingParameters:
    """Training's sampling, at `eval_temperature` where it is set."""
    if config.eval_temperature is None:
        return config.sampling
    return replace(config.sampling, temperature=config.eval_temperature)
