"""Rollouts on disk: what is in the rows, what a killed run leaves, what a resumed one drops."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.support import run_folders
from tests.support.trees import make_node

from antiphon.clients.types import ChatMessage, Score
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.record import rollout_log
from antiphon.learner.record.figures import NodeFigures, tree_figures
from antiphon.learner.record.rollout_log import RolloutLog
from antiphon.learner.record.rollout_reader import read_trees
from antiphon.learner.record.rollouts_view import tree_lines
from antiphon.learner.rollout.tree import AgentPrompt, BranchStop, Node, ReferenceTerm

ROOT = Path(__file__).parents[4]


def _figures(root: Node, **config: Any) -> list[NodeFigures]:
    return list(tree_figures(root, MAGRPOConfig(num_turns=2, **config)))


def _tree() -> Node:
    """Root rewards 0, 1; both go on, with rewards 2, 4 and 1, 1 at turn 2."""
    children = {0: make_node([2.0, 4.0], path=(0,)), 1: make_node([1.0, 1.0], path=(1,))}
    return make_node([0.0, 1.0], children=children)


def test_a_row_holds_a_joint_action_and_what_it_was_worth(tmp_path: Path) -> None:
    root = _tree()
    root.branches[1].score = Score(
        "x", 0.5, components={"style": 0.25, "length": 0.25}, info={"a": [1]}
    )
    RolloutLog(tmp_path / "rollouts").write(_figures(root), epoch=3, prompts_before=12)
    rows = run_folders.rollout_rows(tmp_path)
    assert [(tuple(r["path"]), r["joint_action"]) for r in rows] == [
        ((), 0), ((), 1), ((0,), 0), ((0,), 1), ((1,), 0), ((1,), 1),
    ]  # fmt: skip
    row = rows[1]
    assert (row["phase"], row["epoch"], row["prompts_before"]) == ("train", 3, 12)
    assert (row["task"], row["row"], row["turn"]) == ("7", 7, 1)
    assert row["prompts"] == ["prompt 0", "prompt 1"]
    assert row["texts"] == ["21 2", "21 2"]
    # The processor made 1 of the service's 0.5; R = 1 + mean(1, 1) = 2, the other's is 0 + 3.
    assert (row["reward"], row["score"], row["return"]) == (1.0, 0.5, 2.0)
    assert row["components"] == [("style", 0.25), ("length", 0.25)]
    assert row["info"] == '{"a": [1]}'
    # Mean 2.5, population standard deviation 0.5.
    assert row["advantages"] == pytest.approx([-1.0, -1.0])
    assert row["agent_returns"] == [2.0, 2.0]
    assert row["token_ids"] == [[21, 2], [21, 2]]
    assert row["logprobs"] == [[-0.125, -0.25], [-0.125, -0.25]]
    assert row["weights_versions"] == [[1], [1]]
    assert row["finish"] == ["end_token", "end_token"]
    assert [r["dead"] for r in rows[4:]] == [[True, True]] * 2


def test_in_cross_a_row_names_the_completions_of_its_joint_action(tmp_path: Path) -> None:
    node = make_node([0.0, 1.0, 4.0, None], num_generations=2, mode="cross")
    figures = list(tree_figures(node, MAGRPOConfig(num_turns=1, joint_mode="cross")))
    RolloutLog(tmp_path / "rollouts").write(figures, epoch=1, prompts_before=0)
    rows = run_folders.rollout_rows(tmp_path)
    assert [r["samples"] for r in rows] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert [r["texts"] for r in rows] == [["20 2", "20 2"], ["20 2", "21 2"], ["21 2", "20 2"], ["21 2", "21 2"]]  # fmt: skip # noqa: E501
    # A completion is worth the mean of its joint actions that have a return.
    assert [r["agent_returns"] for r in rows] == [[0.5, 2.0], [0.5, 1.0], [4.0, 2.0], [4.0, 1.0]]
    assert [r["reward"] for r in rows] == [0.0, 1.0, 4.0, None]


def test_parts_of_a_joint_answer_and_the_reference_are_kept(tmp_path: Path) -> None:
    node = make_node([0.0, 1.0], num_agents=1)
    for branch in node.branches:
        branch.role_texts = ("verse", "chorus")
    node.references = ((ReferenceTerm(0.25, (-1.0, -1.0)), ReferenceTerm(0.5, (-1.0, -1.0))),)
    RolloutLog(tmp_path / "rollouts").write(_figures(node), epoch=1, prompts_before=0)
    rows = run_folders.rollout_rows(tmp_path)
    assert [row["role_texts"] for row in rows] == [["verse", "chorus"]] * 2
    assert [row["reference_kls"] for row in rows] == [[0.25], [0.5]]
    ((read,),) = read_trees(tmp_path / "rollouts")
    lines = "\n".join(tree_lines([read], None, lambda text, **_: text))
    assert "reference KL 0.5" in lines
    assert "which gives role 1\n        chorus" in lines


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    root = _tree()
    root.prompts = (AgentPrompt((ChatMessage("user", "say [1]"),), (10,)), root.prompts[1])
    root.branches[0].score = Score("x", None, missing_reason="not finite: nan")
    root.branches[0].reward = math.nan
    root.branches[0].stop, root.branches[0].stop_detail = BranchStop.UNSCORED, "no score"
    root.branches[0].child = None
    log = RolloutLog(tmp_path)
    log.write(_figures(root), epoch=1, prompts_before=0)
    log.write(_figures(make_node([5.0, 6.0])), epoch=2, prompts_before=1)
    log.flush()
    first, second = read_trees(tmp_path)
    assert [node.path for node in first] == [(), (1,)]
    assert first[0].prompts == ([{"role": "user", "content": "say [1]"}], "prompt 1")
    missing, scored = first[0].joint_actions
    assert (missing.reward, missing.return_, missing.missing_reason) == (None, None, "not finite: nan")  # fmt: skip # noqa: E501
    assert (missing.stop, missing.stop_detail) == ("unscored", "no score")
    assert (scored.reward, scored.return_, scored.stop) == (1.0, 2.0, None)
    assert scored.answers[1].text == "21 2"
    assert (scored.answers[1].tokens, scored.answers[1].logprob) == (2, -0.375)
    assert first[0].mean_reward == 1.0
    assert first[1].dead == (True, True)
    (only,) = read_trees(tmp_path, epoch=2)
    assert only == second
    assert [tree[0].epoch for tree in read_trees(tmp_path, newest_first=True)] == [2, 1]
    assert list(read_trees(tmp_path, row=8)) == []


def test_batches_share_parts_and_a_full_part_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_log, "PART_BATCHES", 2)
    log = RolloutLog(tmp_path)
    for prompts in range(3):
        log.write(_figures(make_node([0.0, 1.0])), epoch=1, prompts_before=prompts)
    log.flush()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["train_00000000.parquet", "train_00000002.parquet"]
    assert pq.read_table(tmp_path).column("prompts_before").to_pylist() == [0, 0, 1, 1, 2, 2]


def test_fast_batches_are_written_together_and_a_flush_writes_them_all(tmp_path: Path) -> None:
    now = 100.0
    log = RolloutLog(tmp_path, clock=lambda: now)

    def written() -> int:
        return sum(1 for _ in read_trees(tmp_path))

    for prompts in range(3):
        log.write(_figures(make_node([0.0, 1.0])), epoch=1, prompts_before=prompts)
    assert written() == 1
    now += rollout_log.WRITE_EVERY
    log.write(_figures(make_node([0.0, 1.0])), epoch=1, prompts_before=3)
    assert written() == 4
    log.write(_figures(make_node([0.0, 1.0])), epoch=1, prompts_before=4)
    assert written() == 4
    log.flush()
    assert written() == 5


KILLED = """
import os, signal
from pathlib import Path
import pyarrow.parquet as pq
from tests.support.trees import make_node
from antiphon.learner.record import rollout_log
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.record.figures import tree_figures

log, written = rollout_log.RolloutLog(Path({folder!r})), 0
def write(table, file, **kwargs):
    global written
    written += 1
    if written == 3:
        file.write(b"PAR1 half a file")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    original(table, file, **kwargs)
original, pq.write_table = pq.write_table, write
for prompts in range(5):
    nodes = tree_figures(make_node([0.0, float(prompts)]), MAGRPOConfig(num_turns=1))
    log.write(nodes, epoch=1, prompts_before=prompts)
    log.flush()
"""


def test_a_run_killed_while_it_writes_leaves_whole_files(tmp_path: Path) -> None:
    code = KILLED.format(folder=str(tmp_path))
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [tree[0].mean_reward for tree in read_trees(tmp_path)] == [0.0, 0.5]
    assert pq.read_table(tmp_path).num_rows == 4  # what is half there is no part of the table


def test_a_resumed_run_drops_what_came_after_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_log, "PART_BATCHES", 3)
    log = RolloutLog(tmp_path)
    for prompts in range(5):
        log.write(_figures(make_node([0.0, 1.0])), epoch=1, prompts_before=prompts)
    log.flush()
    for prompts in (2, 4):
        log.write_evaluation(_figures(make_node([3.0, 3.0])), epoch=1, prompts_before=prompts)
    resumed = RolloutLog(tmp_path)
    resumed.rewind(2)
    assert [tree[0].prompts_before for tree in read_trees(tmp_path)] == [0, 1]
    assert [tree[0].prompts_before for tree in read_trees(tmp_path, phase="eval")] == [2]
    for prompts in (2, 3):
        resumed.write(_figures(make_node([0.0, 9.0])), epoch=1, prompts_before=prompts)
    resumed.flush()
    assert [tree[0].mean_reward for tree in read_trees(tmp_path)] == [0.5, 0.5, 4.5, 4.5]


def test_no_trees_make_no_file(tmp_path: Path) -> None:
    RolloutLog(tmp_path / "rollouts").write([], epoch=1, prompts_before=0)
    assert not (tmp_path / "rollouts").exists()
