"""The progress display."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from antiphon.learner.record.progress import (
    Lines,
    LiveTable,
    Snapshot,
    TurnSnapshot,
    duration,
    open_progress,
    snapshot_table,
)
from antiphon.services.common.logs import JsonStream

SNAPSHOT = Snapshot(
    name="demo",
    state="training",
    epoch=1,
    num_epochs=2,
    prompts_done=3,
    prompts_total=8,
    joint_actions=60,
    prompt="Describe a city\nin the clouds:",
    turn=2,
    stage="generate",
    turns=(TurnSnapshot(1, 0.25, 0.75, 0.3, 0.8), TurnSnapshot(2, 0.5, 0.5, 0.6, 0.6)),
    tokens_per_second=118.2,
    batch_seconds={"generate": 12.0, "update": 4.0},
    stage_seconds={"generate": 36.0, "update": 12.0},
    seconds=50.0,
    seconds_left=80.0,
)


def test_without_a_terminal_there_is_one_line_per_prompt() -> None:
    stream = io.StringIO()
    lines = open_progress(stream)
    assert isinstance(lines, Lines)
    before = Snapshot("demo", "training", 1, 2, prompts_done=0, prompts_total=8, joint_actions=0)
    for snapshot in (before, SNAPSHOT, SNAPSHOT):
        lines.update(snapshot)
    (line,) = stream.getvalue().splitlines()
    for part in (
        "epoch 1/2",
        "prompt 3/8",
        "turn 1 reward 0.250 return 0.750",
        "turn 2 reward 0.500 return 0.500",
        "118 tokens/s",
        "generate 12.0 s",
        "left 1 min 20 s",
    ):
        assert part in line


def test_where_logs_are_json_the_lines_are_too_with_their_figures() -> None:
    stream = io.StringIO()
    lines = open_progress(JsonStream(stream))
    lines.update(SNAPSHOT)
    lines.note("waiting for agent 0")
    trained, noted = (json.loads(line) for line in stream.getvalue().splitlines())
    assert trained["message"].startswith("epoch 1/2 | prompt 3/8 | turn 1 reward 0.250")
    assert (trained["level"], trained["logger"]) == ("info", "antiphon.progress")
    assert (trained["prompts_done"], trained["prompts_total"]) == (3, 8)
    assert trained["turn_2/expected_return"] == 0.5
    assert trained["batch_seconds"] == {"generate": 12.0, "update": 4.0}
    assert trained["seconds_left"] == 80.0
    assert (noted["message"], noted["logger"]) == ("waiting for agent 0", "antiphon.progress")


def test_a_note_is_a_line() -> None:
    stream = io.StringIO()
    open_progress(stream).note("agent 0: instance came back")
    assert stream.getvalue() == "agent 0: instance came back\n"


def test_the_table_shows_where_the_run_stands() -> None:
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(snapshot_table(SNAPSHOT, since=10.0))
    text = console.export_text()
    for part in (
        "epoch 1/2",
        "prompt 3/8",
        "generate, turn 2: Describe a city in the clouds:",
        "0.250",
        "0.750",
        "generate 36 s (75%)",
        "update 12 s (25%)",
        "elapsed 1 min 00 s",
        "left 1 min 10 s",
        "118 tokens/s",
    ):
        assert part in text


def test_nothing_is_invented_where_nothing_is_known() -> None:
    console = Console(file=io.StringIO(), width=120, record=True)
    snapshot = Snapshot("demo", "starting", 0, 2, 0, 0, 0, turns=(TurnSnapshot(1, *[None] * 4),))
    console.print(snapshot_table(snapshot, since=0.0))
    text = console.export_text()
    assert "prompt 0/?" in text
    assert "left ?" in text
    assert "0.000" not in text


def test_a_terminal_gets_a_live_table_and_is_given_back() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    table = LiveTable(console)
    try:
        table.update(SNAPSHOT)
        table.note("a line that stays")
    finally:
        table.close()
    written = stream.getvalue()
    assert "a line that stays" in written
    assert "prompt 3/8" in written
    assert written.rstrip("\n").endswith("\x1b[?25h")  # the cursor is shown again


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0, "0 s"),
        (0.44, "0.4 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
    ],
)
def test_durations_read_well(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
