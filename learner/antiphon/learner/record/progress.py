"""Progress for the person at the terminal: a live table, or a line per prompt where there is none.

Where logs are JSON, so are these lines.

Both are told snapshots; neither reads anything of the run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from antiphon.services.common.logs import JsonStream, json_line

_PROMPT_CHARACTERS = 60


@dataclass(frozen=True)
class TurnSnapshot:
    """Means over the nodes of a turn: of the last batch, and of the epoch so far."""

    turn: int
    reward_mean: float | None
    expected_return: float | None
    epoch_reward_mean: float | None
    epoch_expected_return: float | None


@dataclass(frozen=True)
class Snapshot:
    """Where a run stands. `prompts_total` is over all epochs, 0 where unknown."""

    name: str
    state: str
    epoch: int
    num_epochs: int
    prompts_done: int
    prompts_total: int
    joint_actions: int
    prompt: str = ""
    turn: int = 0
    stage: str = ""
    turns: tuple[TurnSnapshot, ...] = ()
    tokens_per_second: float | None = None
    batch_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage of the last batch."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage since the start."""
    seconds: float = 0.0
    seconds_left: float | None = None


class Progress(Protocol):
    """Shows progress."""

    def update(self, snapshot: Snapshot) -> None:
        """Show where the run stands."""
        ...

    def note(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was found."""
        ...


class Silent:
    """Shows nothing."""

    def update(self, snapshot: Snapshot) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Nothing to leave."""


class Lines:
    """Prints a line per prompt, for logs and pipes."""

    def __init__(self, stream: TextIO | JsonStream) -> None:
        self._stream = stream
        self._prompts_done = 0

    def update(self, snapshot: Snapshot) -> None:
        """Print a line once another prompt is trained."""
        if snapshot.prompts_done > self._prompts_done:
            self._prompts_done = snapshot.prompts_done
            self._print(progress_line(snapshot), **_figures(snapshot))

    def note(self, text: str) -> None:
        """Print a line."""
        self._print(text)

    def close(self) -> None:
        """Nothing to leave."""

    def _print(self, text: str, **figures: Any) -> None:
        if isinstance(self._stream, JsonStream):
            self._stream.tell_line(json_line(text, logger="antiphon.progress", **figures))
            return
        self._stream.write(text + "\n")
        self._stream.flush()


class LiveTable:
    """Redraws a table in place. What the script prints meanwhile stays above it."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._shown_at = now()
        self._snapshot: Snapshot | None = None
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=4,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._live.start()

    def update(self, snapshot: Snapshot) -> None:
        """Show where the run stands."""
        self._snapshot, self._shown_at = snapshot, self._now()

    def note(self, text: str) -> None:
        """Print a line above the table."""
        self._live.console.print(Text(text))

    def close(self) -> None:
        """Draw the table a last time and give the terminal back."""
        self._live.stop()

    def _render(self) -> RenderableType:
        if self._snapshot is None:
            return Text("starting ...")
        return snapshot_table(self._snapshot, self._now() - self._shown_at)


def open_progress(stream: TextIO | JsonStream | None = None) -> Progress:
    """Open a live table where `stream` (standard error by default) is a terminal, else lines."""
    stream = sys.stderr if stream is None else stream
    if isinstance(stream, JsonStream):
        return Lines(stream)
    console = Console(file=stream)
    return LiveTable(console) if console.is_terminal else Lines(stream)


def _figures(snapshot: Snapshot) -> dict[str, Any]:
    """What a machine reads of a snapshot."""
    figures: dict[str, Any] = {
        "run": snapshot.name,
        "epoch": snapshot.epoch,
        "num_epochs": snapshot.num_epochs,
        "prompts_done": snapshot.prompts_done,
        "prompts_total": snapshot.prompts_total,
        "joint_actions": snapshot.joint_actions,
        "tokens_per_second": snapshot.tokens_per_second,
        "batch_seconds": dict(snapshot.batch_seconds),
        "seconds_left": snapshot.seconds_left,
    }
    for turn in snapshot.turns:
        figures[f"turn_{turn.turn}/reward_mean"] = turn.reward_mean
        figures[f"turn_{turn.turn}/expected_return"] = turn.expected_return
    return figures


def progress_line(snapshot: Snapshot) -> str:
    """Write a snapshot as one line."""
    parts = [f"epoch {snapshot.epoch}/{snapshot.num_epochs}", f"prompt {_prompts(snapshot)}"]
    parts += [
        f"turn {t.turn} reward {_number(t.reward_mean)} return {_number(t.expected_return)}"
        for t in snapshot.turns
    ]
    if snapshot.tokens_per_second is not None:
        parts.append(f"{snapshot.tokens_per_second:.0f} tokens/s")
    if snapshot.batch_seconds:
        parts.append(
            " ".join(f"{stage} {value:.1f} s" for stage, value in snapshot.batch_seconds.items())
        )
    parts.append(f"left {duration(snapshot.seconds_left)}")
    return " | ".join(parts)


def snapshot_table(snapshot: Snapshot, since: float) -> RenderableType:
    """Lay a snapshot out for a terminal.

    Args:
        snapshot: Where the run stands.
        since: Seconds since it was taken.
    """
    left = snapshot.seconds_left
    head = Text.assemble(
        (snapshot.name, "bold"),
        f"  {snapshot.state}  epoch {snapshot.epoch}/{snapshot.num_epochs}"
        f"  prompt {_prompts(snapshot)}  joint actions {snapshot.joint_actions}",
    )
    doing = Text(overflow="ellipsis", no_wrap=True)
    if snapshot.stage:
        doing.append(f"{snapshot.stage}, turn {snapshot.turn}: " if snapshot.turn else "")
        doing.append("" if snapshot.turn else f"{snapshot.stage}: ")
    doing.append(_one_line(snapshot.prompt), "italic")
    clock = Text(f"elapsed {duration(snapshot.seconds + since)}  left ")
    clock.append(duration(None if left is None else max(0.0, left - since)))
    if snapshot.tokens_per_second is not None:
        clock.append(f"  {snapshot.tokens_per_second:.0f} tokens/s")
    lines: list[RenderableType] = [head]
    if snapshot.prompts_total:
        lines.append(
            ProgressBar(total=snapshot.prompts_total, completed=snapshot.prompts_done, width=60)
        )
    lines += [doing, _turns(snapshot), _stages(snapshot.stage_seconds), clock]
    return Group(*lines)


def duration(seconds: float | None) -> str:
    """Write seconds as 1.5 s, 42 s, 3 min 05 s or 2 h 07 min; ? where unknown."""
    if seconds is None:
        return "?"
    if 0 < seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def _turns(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("turn", "reward", "expected return", "reward, epoch", "return, epoch"):
        table.add_column(column, justify="right", header_style="dim")
    for turn in snapshot.turns:
        table.add_row(
            str(turn.turn),
            _number(turn.reward_mean),
            _number(turn.expected_return),
            _number(turn.epoch_reward_mean),
            _number(turn.epoch_expected_return),
        )
    return table


def _stages(seconds: Mapping[str, float]) -> Text:
    total = sum(seconds.values())
    text = Text()
    for stage, value in seconds.items():
        share = value / total if total else 0.0
        text.append(f"{stage} {duration(value)} ({share:.0%})  ")
    return text


def _prompts(snapshot: Snapshot) -> str:
    return f"{snapshot.prompts_done}/{snapshot.prompts_total or '?'}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _one_line(prompt: str) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= _PROMPT_CHARACTERS else line[: _PROMPT_CHARACTERS - 1] + "…"
