"""The record of a run, told once at the end of each stage.

It writes the run folder (metrics, rollouts, summary) and passes the same figures on to Prometheus,
to trackers, to the progress display and to whoever watches. Per rollout batch it is told, in this
order: `rolled_out`, `updated`, `published`, `batch_done`; between them of every evaluation
`evaluated`; at the end of the run `finish`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from antiphon.clients.types import RunState
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.evaluation.figures import Evaluation
from antiphon.learner.policy.engine_gap import GapWatch
from antiphon.learner.record.figures import NodeFigures, tree_figures
from antiphon.learner.record.metric_rows import (
    Figures,
    add_node,
    add_publications,
    add_seconds,
    add_updates,
)
from antiphon.learner.record.metrics import LearnerMetrics
from antiphon.learner.record.progress import Progress, Silent, Snapshot, TurnSnapshot
from antiphon.learner.record.rollout_log import RolloutLog
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.record.stages import EVALUATE
from antiphon.learner.record.summary import EpochTurn, Summary, summary_json, summary_markdown
from antiphon.learner.record.trackers.base import MetricsRow, Tracker
from antiphon.learner.record.trackers.jsonl import JsonlTracker
from antiphon.learner.rollout.tree import Node

if TYPE_CHECKING:
    from antiphon.learner.policy.updates import AgentUpdate
    from antiphon.learner.weights.publisher import Publication

OnMetrics = Callable[[int, Mapping[str, float]], None]


class RunRecord:
    """What happened in a run. Used from one thread.

    Args:
        folder: Where it is written.
        config: The settings.
        num_agents: Number of agents, N.
        models: Name of each agent's model, for the summary.
        prompts_total: Prompts of all epochs, 0 where unknown.
        metrics: Prometheus metrics, None for none.
        progress: The display, None for none.
        on_metrics: Called with joint actions so far and each row of the metrics.
        now: Seconds since 1970.

    Attributes:
        epoch: Epoch under way, counted from 1; 0 before the first.
        prompts_done: Prompts trained so far, over all epochs.
        joint_actions: Joint actions so far.
        start_time: When the run began, seconds since 1970.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: MAGRPOConfig,
        *,
        num_agents: int,
        models: Sequence[str],
        prompts_total: int = 0,
        metrics: LearnerMetrics | None = None,
        progress: Progress | None = None,
        on_metrics: OnMetrics | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._config = config
        self._gap_watch = GapWatch(config.engine_gap_bound)
        self._num_agents = num_agents
        self._models = tuple(models)
        self._prompts_total = prompts_total
        self._metrics = metrics
        self._progress: Progress = Silent() if progress is None else progress
        self._on_metrics = on_metrics
        self._now = now
        self._rollouts = RolloutLog(folder.rollouts_folder, clock=now)
        self._trackers: list[Tracker] = [JsonlTracker(folder.metrics_file)]
        self.start_time = self._opened = now()
        self._seconds_before = 0.0
        self.epoch = 0
        self.prompts_done = 0
        self.joint_actions = 0
        self._state = RunState.STARTING
        self._doing = ("", "", 0)
        self._row = Figures()
        self._logged_joint_actions = 0
        self._batch = Figures()
        self._batch_prompts = 0
        self._batch_seconds: dict[str, float] = {}
        self._tokens_per_second: float | None = None
        self._epochs: dict[int, Figures] = {}
        self._training_since: float | None = None
        self._prompts_before = 0
        self._stage_seconds: dict[str, float] = {}
        self._last_tree: list[NodeFigures] = []
        self._weights_versions = [0] * num_agents
        self._optimizer_steps = [0] * num_agents
        if metrics is not None:
            metrics.begin(folder.path.name, config, num_agents, prompts_total)

    def track(self, trackers: Sequence[Tracker]) -> None:
        """Tell these the rows of the metrics too; whoever opened them finishes them."""
        self._trackers += trackers

    def working_on(self, stage: str, *, epoch: int, prompt: str = "", turn: int = 0) -> None:
        """Show what is under way now. Nothing is written down."""
        self._state = RunState.TRAINING
        self.epoch = epoch
        self._doing = (stage, prompt, turn)
        self._progress.update(self.snapshot())

    def sampling(self, *, prompt: str, turn: int) -> None:
        """Show a turn that begins, unless something else is under way beside it."""
        stage, *_ = self._doing
        if stage == "generate":
            self._doing = (stage, prompt, turn)
            self._progress.update(self.snapshot())

    def state_changed(self, state: RunState) -> None:
        """Show that the run is paused, goes on, or stops."""
        self._tell_state(state)
        if state is RunState.TRAINING and self._training_since is None:
            self._training_since = self._now()
        self._progress.update(self.snapshot())

    def note(self, text: str) -> None:
        """Show a line that stays."""
        self._progress.note(text)

    def rolled_out(self, epoch: int, roots: Sequence[Node], *, skipped: int = 0) -> None:
        """Tell the trees of a rollout batch.

        Args:
            epoch: Counted from 1.
            roots: The trees, in order of task.
            skipped: Tasks without a tree, too long for the context.
        """
        self.epoch = epoch
        epoch_figures = self._epochs.setdefault(epoch, Figures())
        self._batch, self._batch_prompts = Figures(), len(roots) + skipped
        trees = [list(tree_figures(root, self._config)) for root in roots]
        self._last_tree = trees[-1] if trees else []
        self._keep(trees, epoch)
        nodes = [node for tree in trees for node in tree]
        for node in nodes:
            for figures in (self._row, self._batch, epoch_figures):
                add_node(figures, node)
            self.joint_actions += len(node.node.branches)
        if skipped:
            self._row.sum("skipped_prompts", skipped)
        if self._metrics is not None:
            self._metrics.run.in_epoch(epoch)
            self._metrics.rollouts.batch(nodes, skipped)
            for turn in self._turns():
                self._metrics.rollouts.turn(turn.turn, turn.reward_mean, turn.expected_return)
        self._progress.update(self.snapshot())

    def updated(self, updates: Sequence[AgentUpdate]) -> None:
        """Tell the optimiser steps of a rollout batch."""
        add_updates(self._row, updates)
        for text in self._gap_watch.observe(updates):
            self.note(text)
        for update in updates:
            for agent in self._played_with(update.agent):
                self._optimizer_steps[agent] += sum(s.stepped for _, s in update.steps)
        if self._metrics is not None:
            self._metrics.updates.batch(updates)

    def published(self, publications: Sequence[Publication]) -> None:
        """Tell the publishes of a rollout batch."""
        add_publications(self._row, publications)
        for publication in publications:
            for agent in self._played_with(publication.agent):
                self._weights_versions[agent] = publication.version
        if self._metrics is not None:
            self._metrics.weights.batch(publications)

    def batch_done(self, seconds: Mapping[str, float]) -> None:
        """Tell that a rollout batch is trained and published.

        A row of the metrics is written once `logging_steps` joint actions were made since the last.

        Args:
            seconds: Seconds of the batch by stage.
        """
        add_seconds(self._row, seconds)
        self._batch_seconds = dict(seconds)
        for stage, value in seconds.items():
            self._stage_seconds[stage] = self._stage_seconds.get(stage, 0.0) + value
        self.prompts_done += self._batch_prompts
        self._tokens_per_second = self._speed(seconds)
        if self._metrics is not None:
            self._metrics.run.batch(
                self._batch_prompts,
                seconds,
                self._tokens_per_second,
                prompts_done=self.prompts_done,
                seconds_left=self.seconds_left,
            )
        if self.joint_actions - self._logged_joint_actions >= self._config.logging_steps:
            self._write_row()
        self._progress.update(self.snapshot())

    def evaluated(self, evaluation: Evaluation, *, keep_trees: bool) -> None:
        """Tell an evaluation: a row of the metrics of its own.

        Args:
            evaluation: What it came to.
            keep_trees: Whether its trees are kept, where `keep_rollouts_every` keeps any.
        """
        seconds = self._stage_seconds.get(EVALUATE, 0.0) + evaluation.seconds
        self._stage_seconds[EVALUATE] = seconds
        if keep_trees and self._config.keep_rollouts_every:
            self._rollouts.write_evaluation(
                evaluation.nodes, epoch=self.epoch, prompts_before=self.prompts_done
            )
        if self._metrics is not None:
            self._metrics.evaluations.made(evaluation)
        self._tell_row(dict(sorted(evaluation.figures.items())))
        self._doing = ("", "", 0)
        self._progress.update(self.snapshot())

    def saved(self, seconds: float) -> None:
        """Tell that a checkpoint is complete, and how long it took."""
        if self._metrics is not None:
            self._metrics.checkpoints.written(seconds)

    def save_failed(self) -> None:
        """Tell that a checkpoint could not be written."""
        if self._metrics is not None:
            self._metrics.checkpoints.failed()

    def finish(self, state: RunState, error: str = "") -> None:
        """Write the last row and the summary, and close the display.

        Args:
            state: How the run ended.
            error: The root error where it failed.
        """
        self._rollouts.flush()
        if self._row:
            self._write_row()
        self._tell_state(state)
        self._doing = ("", "", 0)
        summary = Summary(
            run_id=self._folder.run_id,
            state=state.value,
            error=error,
            seconds=self._seconds(),
            epochs=self.epoch,
            num_epochs=self._config.num_train_epochs,
            prompts=self.prompts_done,
            joint_actions=self.joint_actions,
            models=self._models,
            agent_folders=tuple(self._saved_in(agent) for agent in range(self._num_agents)),
            adapters=tuple(self._is_adapter(agent) for agent in range(self._num_agents)),
            keeps_best=(self._folder.path / "best").is_dir(),
            optimizer_steps=tuple(self._optimizer_steps),
            weights_versions=tuple(self._weights_versions),
            stage_seconds=self._stage_seconds,
            rewards=tuple(
                EpochTurn(epoch, t, figures.get(f"turn_{t}/reward_mean"), value)
                for epoch, figures in ((e, f.read()) for e, f in self._epochs.items())
                for t in range(1, self._config.num_turns + 1)
                if (value := figures.get(f"turn_{t}/expected_return")) is not None
            ),
        )
        self._folder.write_json("summary.json", summary_json(summary))
        self._folder.write_text("SUMMARY.md", summary_markdown(summary, self._last_tree))
        self._progress.update(self.snapshot())
        self._progress.close()

    def state_dict(self) -> dict[str, Any]:
        """All counters and what no row holds yet; the rows and rollouts so far are on disk."""
        self._rollouts.flush()
        return {
            "epoch": self.epoch,
            "prompts_done": self.prompts_done,
            "joint_actions": self.joint_actions,
            "logged_joint_actions": self._logged_joint_actions,
            "start_time": self.start_time,
            "seconds": self._seconds(),
            "row": self._row.state_dict(),
            "epochs": {str(epoch): f.state_dict() for epoch, f in self._epochs.items()},
            "stage_seconds": self._stage_seconds,
            "weights_versions": self._weights_versions,
            "optimizer_steps": self._optimizer_steps,
            "metrics_size": self._folder.metrics_size(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave; what was written down since is forgotten."""
        self.epoch = state["epoch"]
        self.prompts_done = self._prompts_before = state["prompts_done"]
        self.joint_actions = state["joint_actions"]
        self._logged_joint_actions = state["logged_joint_actions"]
        self.start_time, self._seconds_before = state["start_time"], state["seconds"]
        self._row.load_state_dict(state["row"])
        for epoch, figures in state["epochs"].items():
            self._epochs.setdefault(int(epoch), Figures()).load_state_dict(figures)
        self._stage_seconds = dict(state["stage_seconds"])
        self._weights_versions = list(state["weights_versions"])
        self._optimizer_steps = list(state["optimizer_steps"])
        if self._metrics is not None:
            self._metrics.run.go_on(self.prompts_done)
        self._folder.cut_metrics(state["metrics_size"])
        self._rollouts.rewind(self.prompts_done)

    def begin_anew(self) -> None:
        """Forget what an earlier process wrote down that left no checkpoint."""
        self._folder.cut_metrics(0)
        self._rollouts.rewind(0)

    def _tell_state(self, state: RunState) -> None:
        self._state = state
        if self._metrics is not None:
            self._metrics.run.state(state)

    def _seconds(self) -> float:
        """Seconds that the run has been under way, over all its processes."""
        return self._seconds_before + self._now() - self._opened

    def abandon(self) -> None:
        """A later process writes this record now: write nothing more, and close the display."""
        self._tell_state(RunState.FAILED)
        self._progress.update(self.snapshot())
        self._progress.close()

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end at the pace so far, None where that cannot be known."""
        done = self.prompts_done - self._prompts_before
        if done == 0 or self._prompts_total == 0:
            return None
        since = self._opened if self._training_since is None else self._training_since
        pace = (self._now() - since) / done
        return pace * max(0, self._prompts_total - self.prompts_done)

    def snapshot(self) -> Snapshot:
        """Where the run stands."""
        stage, prompt, turn = self._doing
        return Snapshot(
            name=self._folder.path.name,
            state=self._state.value,
            epoch=self.epoch,
            num_epochs=self._config.num_train_epochs,
            prompts_done=self.prompts_done,
            prompts_total=self._prompts_total,
            joint_actions=self.joint_actions,
            prompt=prompt,
            turn=turn,
            stage=stage,
            turns=self._turns(),
            tokens_per_second=self._tokens_per_second,
            batch_seconds=self._batch_seconds,
            stage_seconds=dict(self._stage_seconds),
            seconds=self._seconds(),
            seconds_left=self.seconds_left,
        )

    def _keep(self, trees: Sequence[Sequence[NodeFigures]], epoch: int) -> None:
        """Write down every `keep_rollouts_every`-th tree."""
        every = self._config.keep_rollouts_every
        kept = [
            node
            for number, tree in enumerate(trees, self.prompts_done)
            if every and number % every == 0
            for node in tree
        ]
        self._rollouts.write(kept, epoch=epoch, prompts_before=self.prompts_done)

    def _played_with(self, agent: int) -> tuple[int, ...]:
        """The agents that share an agent's policy, itself among them."""
        policies = self._config.policies(self._num_agents)
        return next(agents for agents in policies if agent in agents)

    def _saved_in(self, agent: int) -> str | None:
        """The folder of an agent's trained model; agents that share a policy have one."""
        folder = self._folder.agent_folder(self._played_with(agent)[0])
        return folder.name if folder.is_dir() else None

    def _is_adapter(self, agent: int) -> bool:
        folder = self._saved_in(agent)
        return folder is not None and (self._folder.path / folder / "adapter_config.json").is_file()

    def _turns(self) -> tuple[TurnSnapshot, ...]:
        batch = self._batch.read()
        epoch = self._epochs[max(self._epochs)].read() if self._epochs else {}
        return tuple(
            TurnSnapshot(
                turn=turn,
                reward_mean=batch.get(f"turn_{turn}/reward_mean"),
                expected_return=batch.get(f"turn_{turn}/expected_return"),
                epoch_reward_mean=epoch.get(f"turn_{turn}/reward_mean"),
                epoch_expected_return=epoch.get(f"turn_{turn}/expected_return"),
            )
            for turn in range(1, self._config.num_turns + 1)
        )

    def _speed(self, seconds: Mapping[str, float]) -> float | None:
        """Tokens that all agents generated in a batch, per second of generating."""
        batch = self._batch.read()
        tokens = sum(
            batch.get(f"agent_{agent}/generated_tokens", 0) for agent in range(self._num_agents)
        )
        generating = seconds.get("generate", 0.0)
        return tokens / generating if generating > 0 else None

    def _write_row(self) -> None:
        self._logged_joint_actions = self.joint_actions
        self._tell_row(dict(sorted(self._row.take().items())))

    def _tell_row(self, figures: Mapping[str, float]) -> None:
        row = MetricsRow(
            joint_actions=self.joint_actions,
            epoch=self.epoch,
            prompts=self.prompts_done,
            time=self._now(),
            elapsed_seconds=self._seconds(),
            figures=figures,
        )
        for tracker in self._trackers:
            tracker.log(row)
        if self._on_metrics is not None:
            self._on_metrics(self.joint_actions, figures)
