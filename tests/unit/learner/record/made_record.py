"""Records, what they are told, and what they have written."""

from __future__ import annotations

import json
from typing import Any

from tests.support.trees import make_node

from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.policy.policy import StepStats
from antiphon.learner.policy.updates import AgentUpdate
from antiphon.learner.record.progress import Snapshot
from antiphon.learner.record.record import RunRecord
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.rollout.tree import Node

SECONDS = {"generate": 2.0, "score": 0.5, "transition": 0.0, "update": 1.0, "push": 0.25}


class Screen:
    """Keeps what it was told to show."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.closed = False

    def update(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def made_record(folder: RunFolder, config: MAGRPOConfig | None = None, **kwargs: Any) -> RunRecord:
    return RunRecord(
        folder, config or MAGRPOConfig(num_turns=2), num_agents=2, models=["m", "m"], **kwargs
    )


def rows_of(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.metrics_file.read_text().splitlines()]


def two_turns() -> Node:
    """Root rewards 0, 1; both go on, with rewards 2, 4 and 1, 1 at turn 2."""
    children = {0: make_node([2.0, 4.0], path=(0,)), 1: make_node([1.0, 1.0], path=(1,))}
    return make_node([0.0, 1.0], children=children)


def stepped(agent: int, loss: float) -> AgentUpdate:
    stats = StepStats(stepped=True, live_nodes=1, dead_nodes=1, tokens=8, loss=loss, grad_norm=2.0)
    return AgentUpdate(agent, [([], stats)])
