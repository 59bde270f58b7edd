"""A record that goes on in another process, or was taken over by one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.trees import make_node
from tests.unit.learner.record.made_record import (
    SECONDS,
    Screen,
    made_record,
    rows_of,
    stepped,
)

from antiphon.clients.types import RunState
from antiphon.learner.checkpoints.state_files import read_state, write_state
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.record.record import RunRecord
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.weights.publisher import Publication


def test_a_resumed_record_ends_as_one_that_was_not_stopped(
    folder: RunFolder, tmp_path: Path
) -> None:
    """S12: the row that was not due, the epoch's means, counters and time go on; what came after
    the checkpoint is forgotten.
    """
    config = MAGRPOConfig(num_turns=2, logging_steps=12)

    def batch(record: RunRecord, reward: float) -> None:
        record.rolled_out(1, [make_node([reward, reward + 1])])
        record.updated([stepped(0, reward)])
        record.published([Publication(0, int(reward) + 1, 8, 0.5, 0.1)])
        record.batch_done(SECONDS)

    whole = RunFolder.create(tmp_path, "whole")
    uninterrupted = made_record(whole, config, now=lambda: 100.0)
    for reward in range(8):
        batch(uninterrupted, float(reward))
    uninterrupted.finish(RunState.FINISHED)

    clock = [100.0]
    first = made_record(folder, config, now=lambda: clock[0])
    for reward in range(7):
        batch(first, float(reward))
    clock[0] = 160.0
    write_state(tmp_path, "record", first.state_dict())
    batch(first, 1000.0)
    first.finish(RunState.FAILED, "killed")
    assert [row["prompts"] for row in rows_of(folder)] == [6, 8]

    clock[0] = 1000.0
    second = made_record(folder, config, now=lambda: clock[0])
    second.load_state_dict(read_state(tmp_path, "record"))
    assert (second.prompts_done, second.joint_actions, second.start_time) == (7, 14, 100.0)
    clock[0] = 1010.0
    batch(second, 7.0)
    second.finish(RunState.FINISHED)
    timeless = [
        {name: value for name, value in row.items() if name not in ("time", "elapsed_seconds")}
        for row in rows_of(folder)
    ]
    assert timeless == [
        {name: value for name, value in row.items() if name not in ("time", "elapsed_seconds")}
        for row in rows_of(whole)
    ]
    assert rows_of(folder)[-1]["elapsed_seconds"] == 60 + 10
    one, two = (json.loads((f.path / "summary.json").read_text()) for f in (folder, whole))
    for summary in (one, two):
        for name in ("run_id", "seconds"):
            del summary[name]
    assert one == two


def test_time_left_is_told_from_the_pace_of_this_process(folder: RunFolder, tmp_path: Path) -> None:
    clock = [0.0]
    first = made_record(folder, prompts_total=10, now=lambda: clock[0])
    for _ in range(4):
        first.rolled_out(1, [make_node([0.0, 1.0])])
        first.batch_done(SECONDS)
    write_state(tmp_path, "record", first.state_dict())
    second = made_record(folder, prompts_total=10, now=lambda: clock[0])
    second.load_state_dict(read_state(tmp_path, "record"))
    second.state_changed(RunState.TRAINING)
    assert second.seconds_left is None
    clock[0] = 2.0
    second.rolled_out(1, [make_node([0.0, 1.0])])
    second.batch_done(SECONDS)
    assert second.seconds_left == pytest.approx(2.0 * 5)


def test_a_record_that_another_process_took_over_is_not_written_any_more(
    folder: RunFolder,
) -> None:
    """S7: no row and no summary of a learner that was thought dead."""
    screen = Screen()
    record = made_record(folder, progress=screen)
    record.rolled_out(1, [make_node([0.0, 1.0])])
    record.abandon()
    assert screen.closed
    assert not folder.metrics_file.exists()
    assert not (folder.path / "summary.json").exists()
