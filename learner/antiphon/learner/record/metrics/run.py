"""What the run is, what it is doing, how far it is, and where its time goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from prometheus_client import Gauge

from antiphon.clients.types import RunState
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.record.metrics.making import Maker
from antiphon.learner.record.stages import UPDATE


class RunMetrics:
    """Settings, state, progress, seconds by stage."""

    def __init__(self, make: Maker, now: Callable[[], float]) -> None:
        self._now = now
        self._told_at = now()
        self._run_info = Gauge(
            "antiphon_run_info",
            "How the run is set up; always 1.",
            (
                "run",
                "num_agents",
                "num_generations",
                "num_turns",
                "joint_mode",
                "advantage_mode",
                "loss_normalization",
                "wire_dtype",
            ),
            registry=make.registry,
        )
        self._state = Gauge(
            "antiphon_run_state",
            "1 for what the run is doing, else 0.",
            ("state",),
            registry=make.registry,
        )
        self._stage = make.counter(
            "stage_seconds", "Seconds in which a stage was under way.", "stage"
        )
        self._epoch = make.gauge("epoch", "Epoch under way, counted from 1.")
        self._prompts = make.counter("prompts_trained", "Prompts trained, over all epochs.")
        self._done = make.gauge("prompts_done", "Prompts trained by all processes of the run.")
        self._planned = make.gauge("prompts_planned", "Prompts in all epochs; 0 where unknown.")
        self._left = make.gauge("left_seconds", "Seconds until the end at the pace so far.")
        self._last_batch = make.gauge(
            "last_batch_timestamp_seconds", "When the last batch was trained, seconds since 1970."
        )
        self._batches = make.counter("batches", "Rollout batches trained.")
        self._batch_seconds = make.counter("batch_seconds", "Seconds of batches, from end to end.")
        self._idle = make.counter(
            "idle_seconds", "Seconds of batches in which no update was under way."
        )
        self._tokens_per_second = make.gauge(
            "generated_tokens_per_second", "Tokens per second of generation in the last batch."
        )

    def begin(self, run: str, config: MAGRPOConfig, num_agents: int, prompts_total: int) -> None:
        """Tell how a run is set up, and begin its clock."""
        self._told_at = self._now()
        self._left.set(math.nan)
        self._last_batch.set(self._told_at)
        self._run_info.clear()
        self._run_info.labels(
            run,
            num_agents,
            config.num_generations,
            config.num_turns,
            config.joint_mode,
            config.advantage_mode,
            config.loss_normalization,
            config.wire_dtype,
        ).set(1)
        self._planned.set(prompts_total)
        self.state(RunState.STARTING)

    def state(self, state: RunState) -> None:
        """Tell what the run is doing."""
        for one in RunState:
            self._state.labels(one.value).set(one is state)

    def go_on(self, prompts_done: int) -> None:
        """Tell how far earlier processes of the run have come."""
        self._done.set(prompts_done)

    def in_epoch(self, epoch: int) -> None:
        """Tell which epoch is under way."""
        self._epoch.set(epoch)

    def batch(
        self,
        prompts: int,
        seconds: Mapping[str, float],
        tokens_per_second: float | None,
        *,
        prompts_done: int,
        seconds_left: float | None,
    ) -> None:
        """Tell that a batch is trained, where its time went, and how far the run is."""
        now = self._now()
        whole, self._told_at = max(0.0, now - self._told_at), now
        self._last_batch.set(now)
        self._batches.inc()
        self._batch_seconds.inc(whole)
        self._idle.inc(max(0.0, whole - seconds.get(UPDATE, 0.0)))
        self._done.set(prompts_done)
        self._left.set(math.nan if seconds_left is None else seconds_left)
        self._prompts.inc(prompts)
        for stage, value in seconds.items():
            self._stage.labels(stage).inc(value)
        if tokens_per_second is not None:
            self._tokens_per_second.set(tokens_per_second)
