"""A run folder made by hand, whose numbers the tests work out."""

from __future__ import annotations

from pathlib import Path

from tests.support.trees import make_node

from antiphon.clients.types import ChatMessage, RunState, Score
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.record.record import RunRecord
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.rollout.tree import AgentPrompt, BranchStop, Node

SECONDS = {"generate": 6.0, "score": 1.0, "transition": 0.5, "update": 2.0, "push": 0.5}


def trees() -> list[Node]:
    """Three prompts, two joint actions a node.

    First: rewards 0 and 1; the first goes on with 2 and 4 (mean 3, better by 3), the second with 1
    and 1 (the same). Second: rewards 3 and 5; the first goes on with 2 and none (worse by 1), the
    second ends there. Third: rewards 1 and 1, both end.
    """
    first = make_node(
        [0.0, 1.0],
        children={0: make_node([2.0, 4.0], path=(0,)), 1: make_node([1.0, 1.0], path=(1,))},
    )
    messages = (ChatMessage("user", "</script><b>hello</b>"),)
    first.prompts = (AgentPrompt(messages, (10,)), first.prompts[1])
    first.branches[0].score = Score("x", 0.0, components={"style": 0.25})
    second = make_node([3.0, 5.0], children={0: make_node([2.0, None], path=(0,))})
    second.branches[1].stop = BranchStop.TRUNCATED
    second.branches[1].stop_detail = "agent 0: a prompt of 100 tokens"
    missing = second.branches[0].child
    assert missing is not None
    missing.branches[1].score = Score("y", None, missing_reason="judge timed out")
    third = make_node([1.0, 1.0])
    for row, root in enumerate((first, second, third)):
        for node in root.walk():
            node.row = row
    return [first, second, third]


def make_run(parent: Path, *, finished: bool = True) -> RunFolder:
    """Three rollout batches of a prompt each, ten seconds apart."""
    folder = RunFolder.create(parent, "demo")
    config = MAGRPOConfig(num_turns=2, num_train_epochs=1, logging_steps=1)
    folder.write_config({"magrpo": {"num_turns": 2}, "agents": [{"model": "tiny"}] * 2})
    clock = [1000.0]
    record = RunRecord(folder, config, num_agents=2, models=["m", "m"], now=lambda: clock[0])
    for root in trees():
        clock[0] += 10.0
        record.rolled_out(1, [root])
        record.batch_done(SECONDS)
    if finished:
        record.finish(RunState.FINISHED)
    return folder
