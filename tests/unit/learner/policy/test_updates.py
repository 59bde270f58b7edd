"""Nodes become optimiser steps in the order that design.md gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Barrier

import pytest

from antiphon.learner.arithmetic.buffer import RolloutBuffer
from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.policy.policy import StepStats
from antiphon.learner.policy.updates import Updates


@dataclass
class Recorder:
    """Writes down the nodes of every step; `dead` tasks take none."""

    dead: frozenset[str] = frozenset()
    steps: list[list[str]] = field(default_factory=list)
    groups: list[list[int]] = field(default_factory=list)

    optimizer_steps: int = 0

    def step(self, *minibatches: Sequence[TrainingSample]) -> StepStats:
        minibatch = [sample for one in minibatches for sample in one]
        self.groups.append([len(one) for one in minibatches])
        self.steps.append(sorted(sample.task_id for sample in minibatch))
        live = sum(sample.task_id not in self.dead for sample in minibatch)
        self.optimizer_steps += live > 0
        return StepStats(stepped=live > 0, live_nodes=live, dead_nodes=len(minibatch) - live)


def sample(agent: int, turn: int, name: str) -> TrainingSample:
    return TrainingSample(
        agent=agent,
        turn=turn,
        task_id=name,
        row=0,
        path=(),
        prompt_token_ids=(1,),
        completions=(),
        dead=False,
        mean_reward=None,
        mean_return=None,
        oldest_version=1,
    )


def nodes(agent: int, *names: str) -> list[TrainingSample]:
    """Nodes of turn 1 ("r…") and turn 2 (others)."""
    return [sample(agent, 1 if name.startswith("r") else 2, name) for name in names]


def updates(
    policies: list[Recorder], size: int = 2, minibatch: int | None = None, **options: int
) -> Updates:
    buffers = [RolloutBuffer(agent, size, minibatch, seed=0) for agent in range(len(policies))]
    return Updates(buffers, policies, **{"at_once": 2, "threads": 1, **options})


async def test_steps_of_two_tasks_are_those_worked_out_by_hand() -> None:
    """G 4, T 2, buffer 2: root; c1 | c2,c3 | root'; c4 | c1',c2' | c3',c4'."""
    policy = Recorder()
    made = updates([policy])
    try:
        await made.run([nodes(0, "r", "c1", "c2", "c3", "c4")], end_of_epoch=False)
        await made.run([nodes(0, "r'", "d1", "d2", "d3", "d4")], end_of_epoch=True)
    finally:
        made.close()
    assert policy.steps == [["r"], ["c1"], ["c2", "c3"], ["r'"], ["c4"], ["d1", "d2"], ["d3", "d4"]]


async def test_what_is_left_drains_at_the_end_of_an_epoch_only() -> None:
    policy = Recorder()
    made = updates([policy])
    try:
        (first,) = await made.run([nodes(0, "r")], end_of_epoch=False)
        assert (policy.steps, first.stepped) == ([], False)
        (last,) = await made.run([[]], end_of_epoch=True)
    finally:
        made.close()
    assert (policy.steps, last.stepped) == ([["r"]], True)


async def test_an_agent_whose_nodes_are_all_dead_has_not_stepped() -> None:
    """L5: no optimiser step, so nothing to publish; the other agent is not concerned."""
    made = updates([Recorder(), Recorder(dead=frozenset({"r", "c"}))])
    try:
        one, two = await made.run([nodes(0, "r", "c"), nodes(1, "r", "c")], end_of_epoch=False)
    finally:
        made.close()
    assert (one.stepped, two.stepped) == (True, False)
    assert [stats.dead_nodes for _, stats in two.steps] == [1, 1]


async def test_a_step_that_fails_is_the_error_of_the_update() -> None:
    class Broken(Recorder):
        def step(self, *minibatches: Sequence[TrainingSample]) -> StepStats:
            raise FloatingPointError("the norm is nan")

    made = updates([Recorder(), Broken()])
    try:
        with pytest.raises(FloatingPointError, match="the norm is nan"):
            await made.run([nodes(0, "r", "c"), nodes(1, "r", "c")], end_of_epoch=False)
    finally:
        made.close()


async def test_accumulated_minibatches_are_those_of_one_drain_in_order() -> None:
    """Buffer 7, minibatches of 2, two a step: turn 1 gives 2; turn 2 gives 2, 2, 1; then the rest.

    The last step of a drain has what is left, and the next drain begins anew.
    """
    policy = Recorder()
    made = updates([policy], 7, 2, accumulated=2)
    names = ("r", "r", "c1", "c2", "c3", "c4", "c5", "r")
    try:
        (update,) = await made.run([nodes(0, *names)], end_of_epoch=True)
    finally:
        made.close()
    assert policy.groups == [[2, 2], [2, 1], [1]]
    assert [len(taken) for taken, _ in update.steps] == [4, 3, 1]
    assert policy.steps[0][-2:] == ["r", "r"]


async def test_no_policy_takes_more_than_the_most_steps() -> None:
    """A step from dead nodes alone is none, and does not count."""
    one, two = Recorder(), Recorder(dead=frozenset({"a", "b"}))
    made = updates([one, two], 1, max_steps=2)
    try:
        await made.run(
            [nodes(agent, "a", "b", "c", "d", "e") for agent in (0, 1)], end_of_epoch=True
        )
        (later, _) = await made.run([nodes(0, "f"), []], end_of_epoch=True)
    finally:
        made.close()
    assert one.steps == [["a"], ["b"]]
    assert two.steps == [["a"], ["b"], ["c"], ["d"]]
    assert (later.steps, later.stepped) == ([], False)


async def test_policies_are_updated_at_the_same_time() -> None:
    """Each step waits for one of the other policy."""
    met = Barrier(2)

    class Meeting(Recorder):
        def step(self, *minibatches: Sequence[TrainingSample]) -> StepStats:
            met.wait(timeout=20)
            return super().step(*minibatches)

    policies: list[Recorder] = [Meeting(), Meeting()]
    made = updates(policies)
    try:
        await made.run([nodes(0, "r"), nodes(1, "r")], end_of_epoch=True)
    finally:
        made.close()
    assert [policy.steps for policy in policies] == [[["r"]], [["r"]]]
