"""The run as it stands, for whoever asks, and told at every change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.clients.types import AgentStatus, MetricsLogged, Note, Run, RunState
from antiphon.learner.control.control import RunControl
from antiphon.learner.control.events import EventLog
from antiphon.learner.record.record import RunRecord
from antiphon.learner.record.run_folder import RunFolder


@dataclass
class AgentProgress:
    """Where one agent's weights stand."""

    model: str
    weights_version: int = 0
    optimizer_steps: int = 0


class RunStatus:
    """Knows the run's state and tells its changes to watchers, record and progress.

    Args:
        folder: The run's folder.
        record: Counts what happened.
        control: Says whether a stop has been asked for.
        events: Told of every change.
        num_epochs: Epochs in all.
        prompts_total: Prompts of all epochs, 0 where unknown.
        models: Name of each agent's model.
    """

    def __init__(
        self,
        folder: RunFolder,
        record: RunRecord,
        control: RunControl,
        events: EventLog,
        *,
        num_epochs: int,
        prompts_total: int,
        models: Sequence[str],
    ) -> None:
        self._folder = folder
        self._record = record
        self._control = control
        self._events = events
        self._num_epochs = num_epochs
        self._prompts_total = prompts_total
        self._state = RunState.STARTING
        self._error = ""
        self.incarnation = 0
        self.agents = [AgentProgress(model) for model in models]

    def change(self, state: RunState, error: str = "") -> None:
        """The run is in another state now."""
        self._state, self._error = state, error
        if not state.ended:  # the record tells the end itself
            self._record.state_changed(state)
        self.tell()

    def tell(self) -> None:
        """Watchers see the run as it stands."""
        self._events.append(self.snapshot())

    def tell_metrics(self, joint_actions: int, values: dict[str, float]) -> None:
        """Watchers see a row of figures."""
        self._events.append(MetricsLogged(joint_actions, values))

    def note(self, text: str) -> None:
        """Watchers and the terminal see a line."""
        self._record.note(text)
        self._events.append(Note(text))

    def snapshot(self) -> Run:
        """Where the run stands now."""
        state = self._state
        if self._control.stop_asked and not state.ended:
            state = RunState.STOPPING
        return Run(
            run_id=self._folder.run_id,
            incarnation=self.incarnation,
            state=state,
            run_directory=str(self._folder.path),
            epoch=self._record.epoch,
            num_epochs=self._num_epochs,
            prompts_done=self._record.prompts_done,
            prompts_total=self._prompts_total,
            joint_actions=self._record.joint_actions,
            start_time=self._record.start_time,
            seconds_left=None if state.ended else self._record.seconds_left,
            agents=tuple(
                AgentStatus(number, agent.model, agent.weights_version, agent.optimizer_steps)
                for number, agent in enumerate(self.agents)
            ),
            error=self._error,
        )
