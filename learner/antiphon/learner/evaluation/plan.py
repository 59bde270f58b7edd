"""When a run evaluates, and what becomes of it: record, best models, whoever asked.

With `eval_interval` K an evaluation is due before the first prompt, whenever the number of prompts
trained, counted over the run, has reached or passed another multiple of K, and after the last
prompt. They are made between rollout batches, at staleness 0 with the weights last published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from antiphon.clients.types import EvaluationResult
from antiphon.learner.checkpoints.checkpoints import Checkpoints
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.control.control import RunControl, StoppedError
from antiphon.learner.control.status import RunStatus
from antiphon.learner.evaluation.best_models import BestModels
from antiphon.learner.evaluation.evaluation import Evaluator, OnTask
from antiphon.learner.evaluation.figures import EvaluatedTask, Evaluation
from antiphon.learner.evaluation.requests import (
    EvaluationRefusedError,
    EvaluationRequest,
)
from antiphon.learner.record.record import RunRecord
from antiphon.learner.weights.replicas import RunSupersededError


class Evaluations:
    """The evaluations of a run in training. A component of its checkpoints.

    Args:
        config: Says when.
        evaluator: Runs them.
        record: Counts prompts, and is told the results.
        status: Tells watchers and the terminal; knows the published versions.
        control: Holds who asked for an evaluation.
        checkpoints: Knows whether this learner still drives the run.
        best: Keeps the best models, None where none are kept.
    """

    def __init__(
        self,
        config: MAGRPOConfig,
        evaluator: Evaluator,
        *,
        record: RunRecord,
        status: RunStatus,
        control: RunControl,
        checkpoints: Checkpoints,
        best: BestModels | None = None,
    ) -> None:
        self._config = config
        self._evaluator = evaluator
        self._record = record
        self._status = status
        self._control = control
        self._checkpoints = checkpoints
        self._best = best
        self._made = 0
        self._evaluated_at: int | None = None

    async def if_due(self, *, last: bool = False) -> None:
        """Evaluate where it is due.

        Args:
            last: Whether all prompts are trained.

        Raises:
            StoppedError: The run is to stop; the evaluation is dropped, and due again on resume.
        """
        prompts = self._record.prompts_done
        if not self._due(prompts, last=last):
            return
        evaluation = await self._evaluate(self._config.eval_num_samples)
        self._evaluated_at = prompts
        if evaluation is not None:
            self._record.evaluated(evaluation, keep_trees=True)
            await self._keep_best(evaluation)

    async def answer(self) -> bool:
        """Evaluate for those who asked for it. What fails is told to them; the run goes on.

        Returns:
            Whether there was anybody.

        Raises:
            StoppedError: The run is to stop.
            RunSupersededError: A later learner drives the run.
            asyncio.CancelledError: The run has failed.
        """
        requests = self._control.evaluations.take()
        for number, request in enumerate(requests):
            try:
                await self._answer(request)
            except (StoppedError, RunSupersededError, asyncio.CancelledError) as error:
                why = f"the run ends: {error}" if str(error) else "the run ends"
                for waiting in requests[number:]:
                    waiting.fail(EvaluationRefusedError(why))
                raise
            except Exception as error:  # noqa: BLE001 - user code may raise anything
                reason = f"{type(error).__name__}: {error}"
                request.fail(EvaluationRefusedError(reason))
                self._status.note(f"an evaluation that was asked for failed: {reason}")
        return bool(requests)

    def state_dict(self) -> dict[str, Any]:
        """Evaluations made, after how many prompts the last one was due, and the best value."""
        best = None if self._best is None else self._best.state_dict()
        return {"made": self._made, "evaluated_at": self._evaluated_at, "best": best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self._made = state["made"]
        self._evaluated_at = state["evaluated_at"]
        if self._best is not None and state["best"] is not None:
            self._best.load_state_dict(state["best"])

    def _due(self, prompts: int, *, last: bool) -> bool:
        interval, before = self._config.eval_interval, self._evaluated_at
        if interval == 0 or prompts == before:
            return False
        return before is None or last or prompts // interval > before // interval

    async def _answer(self, request: EvaluationRequest) -> None:
        def on_task(task: EvaluatedTask) -> None:
            request.deliver(EvaluationResult(task.task_id, task.figures))

        wanted = request.num_samples
        evaluation = await self._evaluate(
            self._config.eval_num_samples if wanted is None else wanted, on_task
        )
        if evaluation is not None:
            self._record.evaluated(evaluation, keep_trees=False)
        request.deliver(EvaluationResult("", {} if evaluation is None else evaluation.figures))

    async def _evaluate(
        self, num_samples: int, on_task: OnTask = lambda _: None
    ) -> Evaluation | None:
        """An evaluation, with a line that tells it; None where there are no tasks to evaluate."""
        if num_samples == 0:
            return None
        self._record.working_on("evaluating", epoch=self._record.epoch)
        evaluation = await self._control.unless_stopped(
            self._evaluator.evaluate(self._made + 1, num_samples, on_task)
        )
        self._checkpoints.check_current()
        self._made += 1
        self._status.note(evaluation_line(evaluation, self._record.prompts_done))
        return evaluation

    async def _keep_best(self, evaluation: Evaluation) -> None:
        best = self._best
        if best is None:
            return
        value = evaluation.figures.get(best.metric)
        if value is None:
            known = ", ".join(sorted(evaluation.figures))
            self._status.note(
                f"evaluation {evaluation.number} has no {best.metric} (best_metric); it has {known}"
            )
        elif best.better(value):
            about = {
                "evaluation": evaluation.number,
                "epoch": self._record.epoch,
                "prompts": self._record.prompts_done,
                "joint_actions": self._record.joint_actions,
                "weights_versions": [agent.weights_version for agent in self._status.agents],
            }
            try:
                folder = await asyncio.to_thread(best.keep, value, about)
            except Exception as error:  # noqa: BLE001 - a disk and its libraries raise manifold
                reason = f"{type(error).__name__}: {error}"
                self._status.note(f"the best models could not be written: {reason}")
                return
            self._status.note(f"best {best.metric} so far, {value:.4g}: {folder}")


def evaluation_line(evaluation: Evaluation, prompts: int | None = None) -> str:
    """An evaluation as one line; `prompts` None is one outside of training."""
    turns = [
        f"turn {turn} reward {_number(reward)} return {_number(return_)}"
        for turn in evaluation.turns
        for reward, return_ in [evaluation.turn(turn)]
    ]
    which = "" if prompts is None else f" {evaluation.number} after {prompts} prompts"
    what = f"evaluation{which}: {len(evaluation.tasks)} tasks"
    return " | ".join([what, *turns, f"{evaluation.seconds:.1f} s"])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
