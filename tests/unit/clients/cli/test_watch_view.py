"""What `antiphon watch` shows of an event."""

import dataclasses
import time

import pytest
from rich.console import Console

from antiphon.clients.cli.watch_view import LineView, LiveView, describe
from antiphon.clients.types import AgentStatus, MetricsLogged, Note, Run, RunEvent, RunState

RUN = Run(
    "lovely-run",
    1,
    RunState.TRAINING,
    "/runs/r",
    1,
    2,
    3,
    8,
    60,
    0.0,
    200.0,
    (AgentStatus(0, "smol", 4, 12), AgentStatus(1, "smol", 5, 10)),
)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (RUN, "training  epoch 1/2  prompt 3/8  60 joint actions  3m20s left"),
        (
            dataclasses.replace(RUN, seconds_left=7384.2, prompts_total=0),
            "training  epoch 1/2  prompt 3  60 joint actions  2h03m left",
        ),
        (
            dataclasses.replace(RUN, state=RunState.FAILED, error="reward raised"),
            "failed  epoch 1/2  prompt 3/8  60 joint actions  reward raised",
        ),
        (
            MetricsLogged(60, {"turn_2/reward_mean": 0.123456, "turn_1/reward_mean": 3.0}),
            "after 60 joint actions  turn_1/reward_mean=3  turn_2/reward_mean=0.1235",
        ),
        (MetricsLogged(1, {"x": float("nan")}), "after 1 joint actions  x=nan"),
        (MetricsLogged(1, {"x": float("inf")}), "after 1 joint actions  x=inf"),
        (Note("[bold] is text"), "[bold] is text"),
    ],
)
def test_an_event_is_one_line(event: Run | MetricsLogged | Note, line: str) -> None:
    assert describe(RunEvent(1, 0.0, event)) == line


def test_a_line_tells_its_time_and_what_was_missed(capsys: pytest.CaptureFixture[str]) -> None:
    moment = time.mktime((2024, 1, 2, 13, 4, 5, 0, 0, -1))
    with LineView() as view:
        view.show(RunEvent(9, moment, Note("hello"), missed=7))
    assert capsys.readouterr().out.splitlines() == [
        "13:04:05  (7 earlier events are no longer kept)",
        "13:04:05  hello",
    ]


def test_the_picture_holds_the_run_its_agents_figures_and_notes() -> None:
    view = LiveView("host:1", Console(record=True, width=120, force_terminal=False))
    with view:
        for event in (RUN, MetricsLogged(60, {"loss": 0.5}), Note("[x] saved")):
            view.show(RunEvent(1, 0.0, event))
    text = view.console.export_text()
    for shown in ("lovely-run", "training", "agent 1", "weights 5", "loss", "0.5", "[x] saved"):
        assert shown in text
