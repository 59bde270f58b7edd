"""What evaluations came to."""

from __future__ import annotations

from antiphon.learner.evaluation.figures import Evaluation
from antiphon.learner.record.metrics.making import Maker


class EvaluationMetrics:
    """Evaluations, their rewards and what they took."""

    def __init__(self, make: Maker) -> None:
        self._evaluations = make.counter("evaluations", "Evaluations made.")
        self._eval_tasks = make.counter("eval_tasks", "Tasks evaluated.")
        self._eval_missing = make.counter(
            "eval_missing_rewards", "Evaluated without a reward.", "turn"
        )
        self._eval_seconds = make.counter("eval_seconds", "Seconds of evaluations.")
        self._eval_reward = make.gauge(
            "eval_reward_mean", "Mean reward of the last evaluation's tasks.", "turn"
        )
        self._eval_return = make.gauge(
            "eval_expected_return", "Mean return of the last evaluation's tasks.", "turn"
        )

    def made(self, evaluation: Evaluation) -> None:
        """Tell an evaluation."""
        self._evaluations.inc()
        self._eval_tasks.inc(len(evaluation.tasks))
        self._eval_seconds.inc(evaluation.seconds)
        for turn in evaluation.turns:
            reward, return_ = evaluation.turn(turn)
            if reward is not None:
                self._eval_reward.labels(turn).set(reward)
            if return_ is not None:
                self._eval_return.labels(turn).set(return_)
            self._eval_missing.labels(turn).inc(evaluation.missing(turn))
