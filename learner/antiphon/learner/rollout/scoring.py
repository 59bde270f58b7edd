"""Joint actions to rewards and next prompts: service calls, failures, the reward processor."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from antiphon.clients.reward import why_unusable
from antiphon.clients.types import (
    FieldError,
    JointAction,
    Score,
    ScoredJointAction,
    Task,
    TransitionResult,
)
from antiphon.learner.rollout.shared_calls import SharedCalls

RewardProcessor = Callable[[float], Any]


class RewardCalls(Protocol):
    """The calls of `antiphon.clients.reward.RewardClient` that scoring makes."""

    async def score(
        self,
        run_id: str,
        tasks: Sequence[Task],
        joint_actions: Sequence[JointAction],
        *,
        timeout: float,
        on_failure: Literal["raise", "missing"],
    ) -> list[Score]:
        """Scores in the order asked."""
        ...


class TransitionCalls(Protocol):
    """The calls of `antiphon.clients.transition.TransitionClient` that transitions make."""

    async def transition(
        self,
        run_id: str,
        tasks: Sequence[Task],
        scored: Sequence[ScoredJointAction],
        *,
        num_agents: int,
        timeout: float,
    ) -> list[TransitionResult]:
        """What follows, in the order asked."""
        ...


class OnMainThread(Protocol):
    """Runs user code on the main thread, as `services.common.main_thread.MainThread.run`."""

    async def __call__(self, function: Callable[[], Any], what: str) -> Any:
        """The function's result; `what` names it in errors."""
        ...


class RewardScorer:
    """Asks the reward service and makes of its scores the rewards to train on.

    Args:
        client: Calls the reward service.
        run_id: The run that asks.
        timeout: Seconds per call.
        failures_are_missing: Whether a call that failed for good (exception of the user's function,
            deadline, retries used up) makes its scores missing, or stops the run.
        drop_missing: Whether joint actions may be without a reward, or one that is stops the run.
        one_at_a_time: Whether the service works on one call at a time. Nodes then share calls,
            unless a failed one would take the scores of all of them.
        processor: The user's reward processor, one raw value to one reward; None leaves it.
        on_main_thread: Runs the processor.
    """

    def __init__(
        self,
        client: RewardCalls,
        *,
        run_id: str,
        timeout: float,
        failures_are_missing: bool,
        drop_missing: bool,
        one_at_a_time: bool,
        processor: RewardProcessor | None,
        on_main_thread: OnMainThread,
    ) -> None:
        self._client = client
        self._run_id = run_id
        self._timeout = timeout
        self._failures_are_missing = failures_are_missing
        self._drop_missing = drop_missing
        self._processor = processor
        self._on_main_thread = on_main_thread
        shared = one_at_a_time and not failures_are_missing
        self._shared = SharedCalls(self._call) if shared else None

    async def score(
        self, task: Task, joint_actions: Sequence[JointAction]
    ) -> list[tuple[Score, float | None]]:
        """Score and reward (None where missing) of each joint action, in the order asked.

        Raises:
            CallError: A call failed for good, where that does not make its scores missing.
            FieldError: A reward is missing, where that stops the run.
        """
        if self._shared is not None:
            scores = await self._shared.score(task, joint_actions)
        else:
            scores = await self._call([task], joint_actions, 1)
        values = [_usable(score.value) for score in scores]
        if self._processor is not None and any(value is not None for value in values):
            processor = self._processor
            values = await self._on_main_thread(
                lambda: [None if v is None else _processed(processor, v) for v in values],
                f"reward_processor {_name(processor)}",
            )
        if not self._drop_missing:
            for action, score, value in zip(joint_actions, scores, values, strict=True):
                if value is None:
                    raise self._missing(action, score)
        return list(zip(scores, values, strict=True))

    def _missing(self, action: JointAction, score: Score) -> FieldError:
        if score.value is None:
            got = f"none ({score.missing_reason})"
        else:
            got = f"none (the score is {score.value:g}, for which the reward processor gave none)"
        return FieldError(
            f"reward of joint action {action.id} of turn {action.turn}",
            got,
            "a finite number, since on_missing_score is 'stop': mend what gives the reward, or set "
            "on_missing_score to 'drop' to train its group without it",
        )

    async def _call(
        self, tasks: Sequence[Task], joint_actions: Sequence[JointAction], nodes: int
    ) -> list[Score]:
        return await self._client.score(
            self._run_id,
            tasks,
            joint_actions,
            timeout=self._timeout * nodes,
            on_failure="missing" if self._failures_are_missing else "raise",
        )


class ServiceTransitions:
    """Asks the transition service; a failure stops the run.

    Args:
        client: Calls the transition service.
        run_id: The run that asks.
        num_agents: N, the number of prompts that each answer must hold.
        timeout: Seconds per call.
    """

    def __init__(
        self,
        client: TransitionCalls,
        *,
        run_id: str,
        num_agents: int,
        timeout: float,
    ) -> None:
        self._client = client
        self._run_id = run_id
        self._num_agents = num_agents
        self._timeout = timeout

    async def transition(
        self, task: Task, scored: Sequence[ScoredJointAction]
    ) -> list[TransitionResult]:
        """What follows each joint action, in the order asked."""
        return await self._client.transition(
            self._run_id, [task], scored, num_agents=self._num_agents, timeout=self._timeout
        )


def _processed(processor: RewardProcessor, value: float) -> float | None:
    result = processor(value)
    if result is None:
        return None
    if isinstance(result, numbers.Real) or hasattr(result, "__float__"):
        return _usable(float(result))
    raise TypeError(
        f"reward_processor {_name(processor)}: got {type(result).__name__} for the reward {value}, "
        "wanted a number, or None for a missing reward"
    )


def _usable(value: float | None) -> float | None:
    return value if value is not None and why_unusable(value) is None else None


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
