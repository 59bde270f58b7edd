"""How a run's events are shown: line by line, or as a picture that is drawn again."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from antiphon.clients.types import MetricsLogged, Run, RunEvent

NOTES_KEPT = 8
"""Lines for people that stay in the picture."""


class View(Protocol):
    """Shows events while it is entered."""

    def __enter__(self) -> Self:
        """Begin."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End."""
        ...

    def show(self, event: RunEvent) -> None:
        """Show one event."""
        ...

    def wait_for(self, text: str) -> None:
        """Say what is waited for."""
        ...


class LineView:
    """One line per event, for files and pipes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def show(self, event: RunEvent) -> None:
        """Print the event."""
        if event.missed:
            typer.echo(f"{_clock(event.time)}  ({event.missed} earlier events are no longer kept)")
        typer.echo(f"{_clock(event.time)}  {describe(event)}")

    def wait_for(self, text: str) -> None:
        """Print it on standard error: the lines of events may go to a file."""
        typer.echo(text, err=True)


class LiveView:
    """A picture of the run: where it stands, the latest figures, the latest notes."""

    def __init__(self, address: str, console: Console | None = None) -> None:
        self.console = console or Console()
        self._address = address
        self._run: Run | None = None
        self._values: dict[str, float] = {}
        self._notes: deque[str] = deque(maxlen=NOTES_KEPT)
        self._live = Live(get_renderable=self._picture, console=self.console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def show(self, event: RunEvent) -> None:
        """Take the event into the picture."""
        if isinstance(event.event, Run):
            self._run = event.event
        elif isinstance(event.event, MetricsLogged):
            self._values.update(event.event.values)
        else:
            self._notes.append(f"{_clock(event.time)}  {event.event.text}")
        self._live.refresh()

    def wait_for(self, text: str) -> None:
        """Take it into the picture."""
        self._notes.append(f"{_clock(time.time())}  {text}")
        self._live.refresh()

    def _picture(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._run is None:
            parts.append(Text(f"waiting for {self._address} …"))
        else:
            run = self._run
            parts.append(Text(f"{run.run_id}  {describe_run(run)}"))
            if run.prompts_total:
                parts.append(ProgressBar(total=run.prompts_total, completed=run.prompts_done))
            parts += [
                Text(
                    f"agent {agent.agent}  {agent.model}  weights {agent.weights_version}  "
                    f"steps {agent.optimizer_steps}"
                )
                for agent in run.agents
            ]
        if self._values:
            table = Table(box=None, show_header=False, pad_edge=False)
            for name, value in sorted(self._values.items()):
                table.add_row(Text(name), Text(_number(value)))
            parts.append(table)
        parts += [Text(note) for note in self._notes]
        return Group(*parts)


def describe(event: RunEvent) -> str:
    """One line that says what happened."""
    what = event.event
    if isinstance(what, Run):
        return describe_run(what)
    if isinstance(what, MetricsLogged):
        return f"after {what.joint_actions} joint actions  {_figures(what.values)}"
    return what.text


def describe_run(run: Run) -> str:
    """One line that says where a run stands."""
    total = f"/{run.prompts_total}" if run.prompts_total else ""
    parts = [
        run.state.value,
        f"epoch {run.epoch}/{run.num_epochs}",
        f"prompt {run.prompts_done}{total}",
        f"{run.joint_actions} joint actions",
    ]
    if run.seconds_left is not None and not run.state.ended:
        parts.append(f"{_duration(run.seconds_left)} left")
    if run.error:
        parts.append(run.error)
    return "  ".join(parts)


def _figures(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name}={_number(value)}" for name, value in sorted(values.items()))


def _number(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}"


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def _duration(seconds: float) -> str:
    whole = math.ceil(max(seconds, 0))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{whole % 60:02}s"
