from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.trees import make_sample

from antiphon.clients.types import FieldError
from antiphon.learner.arithmetic.buffer import RolloutBuffer
from antiphon.learner.arithmetic.samples import TrainedCompletion, TrainingSample
from antiphon.learner.checkpoints.state_files import read_state, write_state


def node(path: tuple[int, ...], *, task: str = "0", dead: bool = False) -> TrainingSample:
    completions = [([20, 2], 1.0), ([21, 2], -1.0)]
    return make_sample([1], completions, turn=len(path) + 1, path=path, task_id=task, dead=dead)


def name(sample: TrainingSample) -> str:
    task = "'" * int(sample.task_id)
    return f"c{sample.path[0] + 1}{task}" if sample.path else f"root{task}"


def feed(buffer: RolloutBuffer, nodes: list[TrainingSample]) -> list[list[set[str]]]:
    """Steps of each drain, each step as the set of its nodes."""
    drains = []
    for sample in nodes:
        buffer.add(sample)
        if buffer.ready:
            drains.append([{name(s) for s in step} for step in buffer.drain()])
    return drains


def test_steps_of_two_tasks_worked_out_by_hand() -> None:
    # G 4, T 2, buffer 2, two tasks: root; c1 | c2,c3 | root'; c4 | c1',c2' | c3',c4'.
    tasks = [[node((), task=t), *(node((j,), task=t) for j in range(4))] for t in "01"]
    drains = feed(RolloutBuffer(0, 2, None, seed=0), tasks[0] + tasks[1])
    assert drains == [
        [{"root"}, {"c1"}],
        [{"c2", "c3"}],
        [{"root'"}, {"c4"}],
        [{"c1'", "c2'"}],
        [{"c3'", "c4'"}],
    ]


def test_minibatches_are_cut_within_a_turn() -> None:
    buffer = RolloutBuffer(0, 6, 2, seed=0)
    (drain,) = feed(buffer, [node((), task=t) for t in "01"] + [node((j,)) for j in range(4)])
    assert [len(step) for step in drain] == [2, 2, 2]
    assert drain[0] == {"root", "root'"}
    assert drain[1] | drain[2] == {"c1", "c2", "c3", "c4"}


def test_a_last_minibatch_may_be_smaller() -> None:
    buffer = RolloutBuffer(0, 5, 2, seed=0)
    (drain,) = feed(buffer, [node((j,)) for j in range(5)])
    assert [len(step) for step in drain] == [2, 2, 1]


def test_dead_nodes_enter_and_count() -> None:
    """L5: a dead group takes its place in the buffer."""
    buffer = RolloutBuffer(0, 2, None, seed=0)
    assert feed(buffer, [node((), dead=True), node((0,))]) == [[{"root"}, {"c1"}]]


def test_an_epochs_end_drains_what_is_there() -> None:
    buffer = RolloutBuffer(0, 4, None, seed=0)
    buffer.add(node(()))
    assert not buffer.ready
    assert [[name(s) for s in step] for step in buffer.drain()] == [["root"]]
    assert len(buffer) == 0
    assert buffer.drain() == []
    assert buffer.drains == 1


def orders(*, seed: int = 1, agent: int = 0, drains: int = 1) -> list[list[int]]:
    buffer = RolloutBuffer(agent, 12, None, seed)
    found = []
    for _ in range(drains):
        for j in range(12):
            completions = [([20, 2], 1.0)]
            buffer.add(make_sample([1], completions, agent=agent, turn=2, path=(j,)))
        found.append([s.path[0] for s in buffer.drain()[0]])
    return found


def test_shuffles_recur_and_differ_by_seed_agent_and_drain() -> None:
    first = orders()[0]
    assert orders()[0] == first
    assert sorted(first) == list(range(12))
    first_drain, second_drain = orders(drains=2)
    different = [first, orders(seed=2)[0], orders(agent=1)[0], second_drain]
    assert first_drain == first
    assert len({tuple(order) for order in different}) == 4


def test_a_shuffle_goes_on_from_the_number_of_drains() -> None:
    _, second = orders(drains=2)
    buffer = RolloutBuffer(0, 12, None, seed=1)
    buffer.drains = 1
    for j in range(12):
        buffer.add(make_sample([1], [([20, 2], 1.0)], turn=2, path=(j,)))
    assert [s.path[0] for s in buffer.drain()[0]] == second


def test_every_place_is_about_as_likely() -> None:
    first = Counter(orders(seed=seed)[0][0] for seed in range(600))
    assert set(first) == set(range(12))
    assert max(first.values()) < 90  # 50 expected


@pytest.mark.parametrize(("size", "step", "field"), [(0, None, "buffer"), (2, 0, "train_batch")])
def test_sizes_below_one_are_refused(size: int, step: int | None, field: str) -> None:
    with pytest.raises(FieldError, match=field):
        RolloutBuffer(0, size, step, seed=0)


def test_another_agents_sample_is_refused() -> None:
    with pytest.raises(FieldError, match="agent"):
        RolloutBuffer(1, 2, None, seed=0).add(node(()))


def full_of_everything(position: int) -> TrainingSample:
    """A sample in which every field has a value, with a completion long enough to be packed."""
    many = tuple(range(40))
    completion = TrainedCompletion(
        token_ids=many,
        logprobs=tuple(-0.1 * n for n in many),
        kept_sizes=many,
        return_=0.1 + 0.2,
        advantage=-1 / 3,
        full_logprobs=(-0.5, float("-inf")),
        reference_logprobs=(-0.25,),
    )
    return TrainingSample(
        agent=0,
        turn=2,
        task_id="row-7",
        row=7,
        path=(position,),
        prompt_token_ids=many,
        completions=(completion, completion),
        dead=bool(position % 2),
        mean_reward=None,
        mean_return=1e-300,
        oldest_version=5,
    )


def test_what_waits_in_a_buffer_comes_back_equal_from_a_checkpoint(tmp_path: Path) -> None:
    """S12: nodes that straddle prompts; the drain number keys the shuffle."""
    before = RolloutBuffer(0, 9, 3, seed=5)
    for position in range(9):
        before.add(full_of_everything(position))
    before.drain()
    for position in range(5):
        before.add(full_of_everything(position))
    write_state(tmp_path, "buffer_0", before.state_dict())

    after = RolloutBuffer(0, 9, 3, seed=5)
    after.load_state_dict(read_state(tmp_path, "buffer_0"))
    assert after.samples == before.samples
    assert [hash(sample) for sample in after.samples] == [hash(s) for s in before.samples]
    for position in range(5, 9):
        for buffer in (before, after):
            buffer.add(full_of_everything(position))
    assert after.ready
    assert after.drain() == before.drain()


def test_agents_of_one_policy_share_a_buffer_and_its_steps() -> None:
    """An entry is a node of one agent; others are refused."""
    buffer = RolloutBuffer(0, 3, None, seed=0, agents=(0, 1, 2))
    for agent in range(3):
        buffer.add(replace(node(()), agent=agent))
    assert buffer.ready
    ((step),) = buffer.drain()
    assert sorted(sample.agent for sample in step) == [0, 1, 2]
    with pytest.raises(FieldError, match="got 3, wanted 0 or 1 or 2"):
        buffer.add(replace(node(()), agent=3))
