"""What Prometheus sees of a learner."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from antiphon.clients.types import RunState
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.evaluation.figures import Evaluation
from antiphon.learner.policy.engine_gap import engine_gap
from antiphon.learner.record.figures import Missing, NodeFigures
from antiphon.learner.record.stages import UPDATE
from antiphon.learner.rollout.tree import BranchStop

if TYPE_CHECKING:
    from antiphon.learner.policy.updates import AgentUpdate
    from antiphon.learner.weights.publisher import Publication

DEAD = ("no_difference", "too_few_returns")
"""Why a group teaches nothing."""

_PREFIX = "antiphon_learner_"
_REWARDS = (-10, -5, -2, -1, -0.5, -0.2, -0.1, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
_REWARD_BUCKETS = (*_REWARDS, 2, 5, 10)
_SECONDS_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)


class LearnerMetrics:
    """A learner's metrics in one registry. One per registry: use `learner_metrics`.

    Args:
        registry: Where they are exported from.
        now: Seconds since 1970.
    """

    def __init__(self, registry: CollectorRegistry, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._told_at = now()
        self._players: dict[int, tuple[int, ...]] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(_PREFIX + name, text, labels, registry=registry)

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
            registry=registry,
        )
        self._state = Gauge(
            "antiphon_run_state",
            "1 for what the run is doing, else 0.",
            ("state",),
            registry=registry,
        )
        # Rollouts.
        self._reward = Histogram(
            _PREFIX + "reward",
            "Rewards of joint actions, after the reward processor.",
            ("turn",),
            buckets=_REWARD_BUCKETS,
            registry=registry,
        )
        self._reward_mean = gauge("reward_mean", "Mean reward of the last batch's nodes.", "turn")
        self._expected_return = gauge(
            "expected_return", "Mean return of the last batch's nodes.", "turn"
        )
        self._agent_return = gauge(
            "agent_expected_return",
            "Mean of the returns that an agent was trained on in the last batch.",
            "turn",
            "agent",
        )
        self._reference_kl = gauge(
            "reference_kl_mean",
            "Mean reference KL of the last batch's completions, summed over their tokens.",
            "turn",
            "agent",
        )
        self._nodes = counter("nodes", "Nodes of trees grown.", "turn")
        self._joint_actions = counter("joint_actions", "Joint actions made.", "turn")
        self._missing = counter("missing_rewards", "Joint actions without a reward.", "reason")
        self._stops = counter("branches_stopped", "Branches that ended, by why.", "reason")
        self._skipped = counter("prompts_skipped", "Prompts too long for the context.")
        self._groups = counter("groups", "Groups: one agent's completions at one node.", "agent")
        self._dead = counter(
            "dead_groups",
            "Groups that teach nothing: their returns do not differ, or fewer than two are there.",
            "agent",
            "reason",
        )
        self._spread = gauge(
            "advantage_spread", "Largest minus smallest advantage, mean of live groups.", "agent"
        )
        self._generated = counter("generated_tokens", "Tokens of completions.", "agent")
        # Updates.
        self._steps = counter("optimizer_steps", "Optimiser steps.", "agent")
        self._trained = counter("trained_tokens", "Tokens trained on.", "agent")
        self._forced = counter(
            "forced_tokens", "Sampled tokens that the learner's own kept set had left out.", "agent"
        )
        self._loss = gauge("loss", "Loss of the last optimiser step.", "agent")
        self._grad_norm = gauge("grad_norm", "Gradient norm of the last optimiser step.", "agent")
        self._learning_rate = gauge(
            "learning_rate", "Learning rate of the last optimiser step.", "agent"
        )
        self._kl_loss = gauge(
            "reference_kl_loss", "What the reference KL added to the last step's loss.", "agent"
        )
        self._ratio = gauge("importance_ratio_mean", "Mean ratio of the last step.", "agent")
        self._clipped = gauge(
            "clipped_tokens_ratio",
            "Share of the last step's tokens whose ratio is clipped.",
            "agent",
        )
        self._truncated = gauge(
            "truncated_tokens_ratio",
            "Share of the last step's tokens whose ratio was above the cap.",
            "agent",
        )
        self._entropy = gauge(
            "entropy_nats", "Mean entropy of the sampling distribution in the last step.", "agent"
        )
        self._gap_mean = gauge(
            "logprob_gap_mean",
            "Mean difference of log-probability between learner and engine in the last step.",
            "agent",
        )
        self._gap = gauge(
            "logprob_gap_max",
            "Largest difference of log-probability between learner and engine in the last step.",
            "agent",
        )
        self._engine_gap = gauge(
            "engine_gap_mean",
            "Mean difference of log-probability between learner and engine at the same weights.",
            "agent",
        )
        self._engine_gap_max = gauge(
            "engine_gap_max",
            "Largest difference of log-probability between learner and engine at the same weights.",
            "agent",
        )
        self._staleness = gauge(
            "staleness_max",
            "Most publishes between the weights that a node of the last batch was sampled from and "
            "its entering the buffer.",
            "agent",
        )
        # Publishing.
        self._version = gauge("weights_version", "Version that every replica applied.", "agent")
        self._push_bytes = counter("push_bytes", "Bytes of weights sent.", "agent", "kind")
        self._push_seconds = Histogram(
            _PREFIX + "push_seconds",
            "Seconds of a publish, from encoding to the last answer.",
            ("agent", "kind"),
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self._push_pause = Histogram(
            _PREFIX + "push_pause_seconds",
            "Longest time of a publish in which a replica could not generate.",
            ("agent", "kind"),
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        # Evaluations.
        self._evaluations = counter("evaluations", "Evaluations made.")
        self._eval_tasks = counter("eval_tasks", "Tasks evaluated.")
        self._eval_missing = counter("eval_missing_rewards", "Evaluated without a reward.", "turn")
        self._eval_seconds = counter("eval_seconds", "Seconds of evaluations.")
        self._eval_reward = gauge(
            "eval_reward_mean", "Mean reward of the last evaluation's tasks.", "turn"
        )
        self._eval_return = gauge(
            "eval_expected_return", "Mean return of the last evaluation's tasks.", "turn"
        )
        # Progress.
        self._stage = counter("stage_seconds", "Seconds in which a stage was under way.", "stage")
        self._epoch = gauge("epoch", "Epoch under way, counted from 1.")
        self._prompts = counter("prompts_trained", "Prompts trained, over all epochs.")
        self._done = gauge("prompts_done", "Prompts trained by all processes of the run.")
        self._planned = gauge("prompts_planned", "Prompts in all epochs; 0 where unknown.")
        self._left = gauge("left_seconds", "Seconds until the end at the pace so far.")
        self._last_batch = gauge(
            "last_batch_timestamp_seconds", "When the last batch was trained, seconds since 1970."
        )
        self._batches = counter("batches", "Rollout batches trained.")
        self._batch_seconds = counter("batch_seconds", "Seconds of batches, from end to end.")
        self._idle = counter("idle_seconds", "Seconds of batches in which no update was under way.")
        self._tokens_per_second = gauge(
            "generated_tokens_per_second", "Tokens per second of generation in the last batch."
        )
        # Checkpoints.
        self._checkpoint = gauge(
            "checkpoint_timestamp_seconds",
            "When the last checkpoint was complete, seconds since 1970; 0 before the first.",
        )
        self._checkpoint_seconds = Histogram(
            _PREFIX + "checkpoint_seconds",
            "Seconds of writing a checkpoint.",
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self._checkpoint_failures = counter(
            "checkpoint_failures", "Checkpoints that could not be written."
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
        for agent in range(num_agents):
            self._version.labels(agent).set(0)
            for reason in DEAD:
                self._dead.labels(agent, reason)
        # What never happened is 0, not unknown.
        for missing in Missing:
            self._missing.labels(missing.value)
        for stop in BranchStop:
            self._stops.labels(stop.value)
        self._players = {agents[0]: agents for agents in config.policies(num_agents)}
        self.state(RunState.STARTING)

    def state(self, state: RunState) -> None:
        """Tell what the run is doing."""
        for one in RunState:
            self._state.labels(one.value).set(one is state)

    def go_on(self, prompts_done: int) -> None:
        """Tell how far earlier processes of the run have come."""
        self._done.set(prompts_done)

    def rollout(self, epoch: int, nodes: Sequence[NodeFigures], skipped: int) -> None:
        """Tell what a rollout batch came to."""
        self._epoch.set(epoch)
        self._skipped.inc(skipped)
        spreads: dict[int, list[float]] = {}
        reference_kls: dict[tuple[int, int], list[float]] = {}
        returns: dict[tuple[int, int], list[float]] = {}
        for figures in nodes:
            turn = figures.node.turn
            self._nodes.labels(turn).inc()
            self._joint_actions.labels(turn).inc(len(figures.node.branches))
            for reward in figures.rewards:
                self._reward.labels(turn).observe(reward)
            for reason, count in figures.missing.items():
                self._missing.labels(reason.value).inc(count)
            for stop, count in figures.stops.items():
                self._stops.labels(stop).inc(count)
            for agent, group in enumerate(figures.advantages):
                self._groups.labels(agent).inc()
                present = [r for r in figures.agent_returns[agent] if r is not None]
                returns.setdefault((turn, agent), []).extend(present)
                if group.dead:
                    self._dead.labels(agent, DEAD[len(present) < 2]).inc()
                self._generated.labels(agent).inc(figures.completion_tokens(agent))
                if not group.dead:
                    spreads.setdefault(agent, []).append(figures.advantage_spread(agent))
                if kls := figures.reference_kls(agent):
                    reference_kls.setdefault((turn, agent), []).extend(kls)
        for agent, values in spreads.items():
            self._spread.labels(agent).set(fmean(values))
        for (turn, agent), values in reference_kls.items():
            self._reference_kl.labels(turn, agent).set(fmean(values))
        for (turn, agent), values in returns.items():
            if values:
                self._agent_return.labels(turn, agent).set(fmean(values))

    def turn(self, turn: int, reward_mean: float | None, expected_return: float | None) -> None:
        """Tell a turn's means over the last batch."""
        if reward_mean is not None:
            self._reward_mean.labels(turn).set(reward_mean)
        if expected_return is not None:
            self._expected_return.labels(turn).set(expected_return)

    def updates(self, updates: Sequence[AgentUpdate]) -> None:
        """Tell the optimiser steps of a batch."""
        for update in updates:
            agent = update.agent
            if staleness := [node.staleness for nodes, _ in update.steps for node in nodes]:
                self._staleness.labels(agent).set(max(staleness))
            if (same_weights := engine_gap(update)) is not None:
                self._engine_gap.labels(agent).set(same_weights.logprob_gap_mean)
                self._engine_gap_max.labels(agent).set(same_weights.logprob_gap_max)
            for _, stats in update.steps:
                if not stats.stepped:
                    continue
                self._steps.labels(agent).inc()
                self._trained.labels(agent).inc(stats.tokens)
                self._forced.labels(agent).inc(stats.forced_tokens)
                self._loss.labels(agent).set(stats.loss)
                self._grad_norm.labels(agent).set(stats.grad_norm)
                self._learning_rate.labels(agent).set(stats.learning_rate)
                if stats.reference_kl_loss is not None:
                    self._kl_loss.labels(agent).set(stats.reference_kl_loss)
                if stats.truncated_fraction is not None:
                    self._truncated.labels(agent).set(stats.truncated_fraction)
                self._ratio.labels(agent).set(stats.ratio_mean)
                self._clipped.labels(agent).set(stats.clip_fraction)
                self._entropy.labels(agent).set(stats.entropy)
                self._gap_mean.labels(agent).set(stats.logprob_gap_mean)
                self._gap.labels(agent).set(stats.logprob_gap_max)

    def publications(self, publications: Sequence[Publication]) -> None:
        """Tell the publishes of a batch."""
        for publication in publications:
            agent = publication.agent
            for player in self._players.get(agent, (agent,)):
                self._version.labels(player).set(publication.version)
            kind = publication.kind.value
            self._push_bytes.labels(agent, kind).inc(publication.nbytes)
            self._push_seconds.labels(agent, kind).observe(publication.seconds)
            self._push_pause.labels(agent, kind).observe(publication.pause_seconds)

    def evaluation(self, evaluation: Evaluation) -> None:
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

    def checkpoint(self, seconds: float) -> None:
        """Tell that a checkpoint is complete, and how long it took."""
        self._checkpoint.set(self._now())
        self._checkpoint_seconds.observe(seconds)

    def checkpoint_failed(self) -> None:
        """Tell that a checkpoint could not be written."""
        self._checkpoint_failures.inc()


_made: dict[CollectorRegistry, LearnerMetrics] = {}


def learner_metrics(registry: CollectorRegistry = REGISTRY) -> LearnerMetrics:
    """The learner's metrics in `registry`, made when first asked for."""
    if registry not in _made:
        _made[registry] = LearnerMetrics(registry)
    return _made[registry]
