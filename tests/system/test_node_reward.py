"""The JavaScript reward service of the examples, written from the .proto files alone."""

import shutil
from pathlib import Path

import pytest
from tests.integration.examples.reward_training import (
    ROOT,
    assert_rewarded_by_the_task,
    expected_reward,
    printed_address,
    train,
)
from tests.support.processes import Processes, command, run

from antiphon.clients.reward import RewardClient
from antiphon.clients.types import AgentAction, JointAction, Phase, Task

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example with its packages installed."""
    folder = tmp_path_factory.mktemp("node") / "reward"
    source = ROOT / "examples" / "reward_service_node"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("node_modules"))
    run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], cwd=folder)
    return folder


@pytest.fixture
def address(processes: Processes, example: Path) -> str:
    """Where the example serves."""
    options = ("--port", "0", "--protos", str(ROOT / "protos"))
    arguments = ["node", str(example / "server.js"), *options]
    return printed_address(processes.start("reward", arguments))


async def test_it_scores_as_the_task_says_and_states_why_where_it_cannot(address: str) -> None:
    pairs = [("abcd", "abcdefgh"), ("ab", "𝄞𝄞𝄞𝄞𝄞𝄞"), ("", "é"), ("abc", ""), ("only one agent",)]
    joint_actions = [
        JointAction(
            id=f"action-{i}",
            task_id="task",
            turn=1,
            phase=Phase.TRAIN,
            attempt=1,
            actions=tuple(AgentAction("asked", text) for text in texts),
        )
        for i, texts in enumerate(pairs)
    ]
    client = RewardClient(address)
    try:
        scores = await client.score("run", [Task("task", {})], joint_actions, timeout=10)
    finally:
        await client.close()
    *scored, refused = scores
    assert [s.value for s in scored] == pytest.approx([expected_reward(*p) for p in pairs[:-1]])
    assert refused.value is None
    assert refused.missing_reason == "got 1 agents, wanted 2"


def test_it_keeps_the_contract(address: str) -> None:
    run(command("check", "reward", address))


def test_it_scores_a_training(processes: Processes, address: str, tiny_model_folder: Path) -> None:
    assert_rewarded_by_the_task(train(processes, tiny_model_folder, address))
