"""Sizes of a run, against trees that are really grown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.trees import make_sample

from antiphon.learner.arithmetic.buffer import RolloutBuffer
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.rollout.size import TreeSize, most_optimizer_steps, run_size
from antiphon.learner.rollout.tree import joint_indices


def _count(mode: str, agents: int, generations: int, turns: int) -> tuple[int, int, int]:
    """Nodes, joint actions and completions, counted by growing the tree."""
    if turns == 0:
        return 0, 0, 0
    branches = joint_indices(mode, agents, generations)
    nodes, joint_actions, completions = 1, len(branches), agents * generations
    for _ in branches:
        below = _count(mode, agents, generations, turns - 1)
        nodes, joint_actions, completions = (
            nodes + below[0],
            joint_actions + below[1],
            completions + below[2],
        )
    return nodes, joint_actions, completions


@pytest.mark.parametrize("mode", ["aligned", "cross"])
@pytest.mark.parametrize(("agents", "generations", "turns"), [(1, 2, 1), (2, 2, 3), (3, 2, 2)])
def test_the_most_is_a_full_tree(mode: str, agents: int, generations: int, turns: int) -> None:
    config = MAGRPOConfig(
        joint_mode=mode, num_generations=generations, num_turns=turns, max_new_tokens=5
    )
    size = run_size(config, agents, 1).most_per_prompt
    nodes, joint_actions, completions = _count(mode, agents, generations, turns)
    assert size == TreeSize(nodes, joint_actions, completions, completions * 5)


def test_the_job_of_the_examples() -> None:
    """Two agents, two turns, G 4, 64 tokens: 5 nodes, 20 joint actions, 40 completions."""
    config = MAGRPOConfig(num_turns=2, num_generations=4, max_new_tokens=64, num_train_epochs=2)
    size = run_size(config, 2, 4)
    assert size.most_per_prompt == TreeSize(5, 20, 40, 2560)
    assert size.least_per_prompt == TreeSize(1, 4, 8, 512)
    assert size.most_per_epoch == TreeSize(20, 80, 160, 10240)
    assert size.most_per_run == TreeSize(40, 160, 320, 20480)
    assert size.turns == (TreeSize(1, 4, 8, 512), TreeSize(4, 16, 32, 2048))


def test_without_a_length_there_is_no_epoch_size() -> None:
    size = run_size(MAGRPOConfig(), 2, None)
    assert size.most_per_epoch is None
    assert size.most_per_run is None


def _pre_order(branches: int, turns: int, turn: int = 1) -> Iterator[int]:
    yield turn
    for _ in range(branches if turn < turns else 0):
        yield from _pre_order(branches, turns, turn + 1)


def test_steps_of_a_run_are_those_worked_out_by_hand() -> None:
    """G 4, T 2, buffer 2, two tasks: root; c1 | c2,c3 | root'; c4 | two and two: seven steps."""
    config = MAGRPOConfig(num_generations=4, num_turns=2, num_train_epochs=3)
    assert most_optimizer_steps(config, 1, 2) == 3 * 7


@pytest.mark.parametrize("prompts", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("sharing", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [
        {"num_turns": 1},
        {"num_turns": 2},
        {"num_turns": 2, "rollout_buffer_size": 6, "train_batch_size": 2},
        {"num_turns": 2, "rollout_buffer_size": 5, "gradient_accumulation_steps": 2},
        {"num_turns": 3, "rollout_buffer_size": 7, "train_batch_size": 3},
        {"num_turns": 2, "joint_mode": "cross", "rollout_buffer_size": 100},
    ],
)
def test_most_steps_are_those_of_whole_trees_through_the_buffer(
    settings: dict[str, object], sharing: int, prompts: int
) -> None:
    config = MAGRPOConfig(num_generations=2, num_train_epochs=1, **settings)
    branches = 4 if config.joint_mode == "cross" else 2
    buffer = RolloutBuffer(0, config.rollout_buffer_size, config.train_batch_size, seed=0)
    accumulated, steps = config.gradient_accumulation_steps, 0
    for turn in [t for _ in range(prompts) for t in _pre_order(branches, config.num_turns)]:
        for _ in range(sharing):
            buffer.add(make_sample([1], [([2], 1.0)], turn=turn))
            if buffer.ready:
                steps += len(range(0, len(buffer.drain()), accumulated))
    steps += len(range(0, len(buffer.drain()), accumulated))
    assert most_optimizer_steps(config, 2, prompts, sharing=sharing) == steps


def test_a_tree_too_large_to_walk_has_a_bound_on_its_steps() -> None:
    """64^0 + … + 64^5 nodes: what listed them would not come back."""
    config = MAGRPOConfig(
        num_turns=6,
        joint_mode="cross",
        num_generations=4,
        num_train_epochs=2,
        rollout_buffer_size=8,
        train_batch_size=4,
    )
    nodes = sum(64**turn for turn in range(6))
    # A drain of 8 nodes: two full minibatches of 4 in one turn, and 5 turns more with one each.
    assert most_optimizer_steps(config, 3, 1) == -(-nodes // 8) * 7 * 2


def test_the_bound_is_not_below_what_walking_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    config = MAGRPOConfig(num_turns=3, num_generations=2, rollout_buffer_size=3, num_train_epochs=1)
    walked = most_optimizer_steps(config, 2, 5)
    monkeypatch.setattr("antiphon.learner.rollout.size.MOST_WALKED", 1)
    assert most_optimizer_steps(config, 2, 5) >= walked
