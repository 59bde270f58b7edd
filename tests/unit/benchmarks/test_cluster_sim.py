"""The simulated cluster takes the seconds that can be worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import simpy
from benchmarks.cluster_sim_parts import hardware, page, scale
from benchmarks.cluster_sim_parts.cluster import Found, simulate
from benchmarks.cluster_sim_parts.costs import Costs, EngineCosts, ProcessCosts, PushCosts, Work
from benchmarks.cluster_sim_parts.measure import parts_of, shared_out
from benchmarks.cluster_sim_parts.replica import Replica, Row
from benchmarks.cluster_sim_parts.servers import Cores, Link, Thread
from benchmarks.simulated.run import Job

ROOT = Path(__file__).parents[3]
ENGINE = EngineCosts(step_seconds=0.01, places=4)
WORK = Work(tokens=50, update_seconds=1.0)
"""Four completions of 50 tokens, half a second of sampling, and an update of one second."""


def step(work: Work = WORK, **costs: Any) -> float:
    return found(work, **costs).step


def found(work: Work = WORK, **costs: Any) -> Found:
    return simulate(work, Costs(**{"engine": ENGINE, **costs}))


def test_one_replica_without_a_queue_samples_then_updates() -> None:
    result = found()
    assert result.seconds == pytest.approx((1.5,) * 4)
    assert result.idle == pytest.approx(2 / 3)
    assert result.learner == pytest.approx(2 / 3)
    assert result.tokens == 200
    assert result.staleness == 0


def test_turns_and_scores_add_up() -> None:
    """T (g + s) + u, where the engine has room for all nodes of a turn."""
    work = replace(WORK, turns=2)
    engine = replace(ENGINE, places=16)
    assert step(work, engine=engine, score_seconds=0.2) == pytest.approx(2 * (0.5 + 0.2) + 1.0)


def test_rows_that_do_not_fit_wait_for_places() -> None:
    assert step(replace(WORK, tasks=3)) == pytest.approx(3 * 0.5 + 1.0)


def test_replicas_share_the_prompts_of_a_turn() -> None:
    assert step(replace(WORK, tasks=3, replicas=3)) == pytest.approx(1.5)
    assert step(replace(WORK, tasks=3, replicas=2)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("factor", "balance", "seconds"),
    [
        (1.6, "shares", 3 * 0.8),  # three prompts of the slow one
        (1.6, "chunks", 4 * 0.5),  # the other takes four, while it takes 1.6 for two
        (10.0, "shares", 6 * 0.5),  # it is behind, so the other takes all six
    ],
)
def test_a_slow_replica_of_two_costs_what_it_holds_up(
    factor: float, balance: Any, seconds: float
) -> None:
    work = replace(WORK, tasks=6, replicas=2, slow={1: factor}, balance=balance)
    assert step(work) == pytest.approx(seconds + 1.0)


@pytest.mark.parametrize(
    ("update", "seconds", "idle"), [(0.5, 0.5, 0.0), (2.0, 2.0, 0.75), (0.1, 0.5, 0.0)]
)
def test_staleness_1_takes_the_longer_of_sampling_and_update(
    update: float, seconds: float, idle: float
) -> None:
    work = replace(WORK, update_seconds=update, staleness=1, steps=8)
    result = found(work, engine=replace(ENGINE, exclusive=True))
    assert result.step == pytest.approx(seconds)
    assert result.idle == pytest.approx(idle)
    assert result.staleness == 1


def test_batches_that_are_sampled_at_once_wait_for_one_another() -> None:
    """Two batches of eight prompts under way, two replicas with room for one prompt each."""
    work = replace(WORK, tasks=8, replicas=2, staleness=1, steps=8)
    assert step(work, on_swap="continue") == pytest.approx(2.0)


def test_agents_are_updated_side_by_side_or_in_turn() -> None:
    work = replace(WORK, agents=2)
    assert step(work) == pytest.approx(1.5)
    assert step(replace(work, side_by_side=False)) == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("push", "seconds"),
    [
        (PushCosts(nbytes=100, link=100), 4.0),  # four times all bytes through one link
        (PushCosts(nbytes=100, link=1000, replica_link=50), 2.0),  # into each replica
        (PushCosts(nbytes=100, link=100, fanout="store", store_link=400), 1.0 + 1.0),
        # Two copies leave the learner; a replica passes on 100 bytes twice, ten at a time.
        (
            PushCosts(nbytes=100, link=100, replica_link=100, fanout="tree", chunk=10),
            2.0 + 10 / 50,
        ),
        (PushCosts(encode_seconds=0.5, apply_seconds=0.25), 0.75),
    ],
)
def test_a_push_takes_what_its_links_do(push: PushCosts, seconds: float) -> None:
    result = found(replace(WORK, tasks=4, replicas=4), push=push)
    assert result.push_seconds == pytest.approx(seconds)
    assert result.step == pytest.approx(1.5 + seconds)


def test_two_agents_share_the_learners_link_and_a_tree_keeps_its_load() -> None:
    work = replace(WORK, tasks=4, replicas=4, agents=2)
    each = found(work, push=PushCosts(nbytes=100, link=100))
    tree = found(work, push=PushCosts(nbytes=100, link=100, fanout="tree"))
    assert each.push_seconds == pytest.approx(8.0)
    assert (each.nbytes, tree.nbytes) == (800, 400)
    many = found(replace(work, replicas=64), push=PushCosts(nbytes=100, link=100, fanout="tree"))
    assert many.nbytes == 400


def test_the_learners_loop_takes_one_thing_after_another() -> None:
    """Calls, completions and nodes of four replicas, in one thread."""
    work = replace(WORK, tasks=4, replicas=4)
    learner = ProcessCosts(per_completion=0.01)
    assert step(work, learner=learner) == pytest.approx(1.5 + 16 * 0.01)
    learner = ProcessCosts(per_call=0.1)
    assert step(work, learner=learner) == pytest.approx(1.5 + 4 * 0.1)
    learner = ProcessCosts(per_step=0.2, per_push=0.1)
    assert step(work, learner=learner) == pytest.approx(1.5 + 0.2 + 4 * 0.1)


def test_chunks_fit_what_a_replica_can_hold() -> None:
    """Eight prompts over two replicas with room for one each: four rounds."""
    work = replace(WORK, tasks=8, replicas=2)
    assert step(work) == pytest.approx(4 * 0.5 + 1.0)


class Sampled:
    """A replica that is asked for rows; when each ended, by name, and under which weights."""

    def __init__(self, waits: bool = True, **costs: Any) -> None:
        self.env = simpy.Environment()
        engine = EngineCosts(**{"step_seconds": 1.0, "places": 2, **costs})
        self.replica = Replica(self.env, engine, waits=waits)
        self.ended: dict[int, float] = {}
        self.versions: dict[int, int] = {}

    def ask(self, *lengths: int, first: int = 0, prompt: int = 0) -> None:
        rows = [Row(first + n, length, prompt, self._end) for n, length in enumerate(lengths)]
        self.replica.ask(rows)

    def later(self, seconds: float, what: Callable[[], Any]) -> None:
        self.env.timeout(seconds).callbacks.append(lambda _: what())

    def _end(self, row: Row) -> None:
        self.ended[row.node] = self.env.now
        self.versions[row.node] = row.version

    def run(self) -> dict[int, float]:
        self.env.run(until=1000)
        return self.ended


def test_a_row_joins_as_another_ends() -> None:
    sampled = Sampled()
    sampled.ask(10, 4, 6)
    assert sampled.run() == {0: 10, 1: 4, 2: 10}
    assert sampled.replica.busy == 10
    assert sampled.replica.tokens == 20


def test_rows_join_once_enough_places_are_free() -> None:
    sampled = Sampled(join_share=1.0)
    sampled.ask(10, 4, 6)
    assert sampled.run() == {0: 10, 1: 4, 2: 16}


def test_another_request_shares_the_places_or_waits() -> None:
    for exclusive, end in ((False, 3 + 5), (True, 10 + 5)):
        sampled = Sampled(exclusive=exclusive)
        sampled.ask(10)
        sampled.later(2.5, lambda sampled=sampled: sampled.ask(5, first=1))
        assert sampled.run() == {0: 10, 1: end}


def test_a_step_takes_the_longer_of_weights_and_products_and_reads_the_context() -> None:
    costs = EngineCosts(step_seconds=1, read_seconds=4, row_seconds=1, context_seconds=0.1)
    assert costs.step(2, 0) == 5
    assert costs.step(6, 10) == 1 + 6 + 1
    # One row of two tokens behind a prompt of ten: 10 to 12 tokens of context, 11 on average.
    sampled = Sampled(context_seconds=0.1)
    sampled.ask(2, prompt=10)
    assert sampled.run() == {0: pytest.approx(2 * (1 + 1.1))}


def test_a_prompt_is_prefilled_once_for_all_its_completions() -> None:
    sampled = Sampled(prompt_seconds=0.1)
    rows = [Row(0, 3, 20, sampled._end) for _ in range(3)]
    sampled.replica.ask(rows)
    assert sampled.run() == {0: pytest.approx(2 + 3 + 3)}


@pytest.mark.parametrize(("waits", "applied", "version"), [(True, 10.5, 1), (False, 3.5, 1)])
def test_new_weights_wait_for_rows_under_way_or_for_a_step(
    waits: bool, applied: float, version: int
) -> None:
    sampled, when = Sampled(waits), []
    sampled.ask(10)

    def swap() -> None:
        done = sampled.replica.swap(1, 0.5)
        done.callbacks.append(lambda _: when.append(sampled.env.now))

    sampled.later(2.2, swap)
    sampled.later(2.4, lambda: sampled.ask(5, first=1))
    sampled.run()
    assert when == [pytest.approx(applied)]
    assert sampled.versions == {0: 0, 1: version}


def test_flows_share_a_link() -> None:
    """A has 40 of its 100 bytes when B comes; B's 20 take 4 s beside it; 40 are left to A then."""
    env = simpy.Environment()
    link, ended = Link(env, 10.0), {}

    def flow(name: str, begins: float, nbytes: float) -> Any:
        yield env.timeout(begins)
        yield link.send(nbytes)
        ended[name] = env.now

    for about in (("A", 0, 100), ("B", 4, 20), ("C", 20, 10)):
        env.process(flow(*about))
    env.run(until=100)
    assert ended == {"A": pytest.approx(12), "B": pytest.approx(8), "C": pytest.approx(21)}
    assert link.busy == pytest.approx(13)
    assert link.nbytes == 130


def test_a_flow_ends_although_the_clock_cannot_move_for_its_last_bytes() -> None:
    """At 1,035 s the clock's resolution is 2e-13 s, in which this link carries 1e-4 bytes."""
    env = simpy.Environment(initial_time=1035.417)
    link, ended = Link(env, 484143218.57), []
    for number in range(500):

        def flow(nbytes: float) -> Any:
            yield link.send(nbytes)
            ended.append(nbytes)

        env.process(flow(2706863.7 + number / 7))
    events = 0
    while len(ended) < 500:
        env.step()
        events += 1
        assert events < 100_000
    assert ended == sorted(ended)
    assert env.now - 1035.417 == pytest.approx(sum(ended) / 484143218.57)


def test_cores_take_work_in_order() -> None:
    env = simpy.Environment()
    cores, ended = Cores(env, 2), []
    for seconds in (3, 1, 1, 4):
        cores.work(seconds).callbacks.append(lambda _: ended.append(env.now))
    env.run()
    assert ended == [1, 2, 3, 6]


def test_a_thread_does_one_thing_after_another_beside_other_work_on_its_cores() -> None:
    """Four seconds and one of the thread on one core; five of others on the other, then on both."""
    env = simpy.Environment()
    cores = Cores(env, 2)
    thread, ended = Thread(env, cores), []
    work = [("t", thread, 4), ("t", thread, 1), ("c", cores, 3), ("c", cores, 2), ("c", cores, 2)]
    for name, worker, seconds in work:
        worker.work(seconds).callbacks.append(lambda _, name=name: ended.append((name, env.now)))
    env.run()
    assert ended == [("c", 3), ("t", 4), ("t", 5), ("c", 5), ("c", 7)]
    assert thread.busy == 5


def test_services_have_all_cores_while_the_learners_loop_waits() -> None:
    """Four pushes of 0.1 s each, on two cores and on one."""
    work = replace(WORK, tasks=4, replicas=4)
    assert step(work, cores=2, service=ProcessCosts(per_push=0.1)) == pytest.approx(1.5 + 0.2)
    assert step(work, cores=1, service=ProcessCosts(per_push=0.1)) == pytest.approx(1.5 + 0.4)


def test_seconds_are_shared_out_to_what_took_them() -> None:
    jobs = [
        Job(batches=1, tokens=1, tasks=tasks, replicas=replicas, generations=generations)
        for tasks, replicas, generations in ((1, 1, 4), (8, 8, 4), (32, 1, 4), (1, 1, 64))
    ]
    counts = [parts_of(job, 0.5, stepped=stepped) for job in jobs for stepped in (True, False)]
    assert counts[2] == [1, 8, 32, 32, 8, 8, 1]
    assert counts[3] == [1, 8, 32, 32, 8, 0, 0]
    each = [0.02, 0.001, 0.0002, 0.0, 0.0005, 0.003, 0.01]
    seconds = [sum(a * b for a, b in zip(row, each, strict=True)) for row in counts]
    shared = shared_out(counts, seconds)
    assert min(shared) >= 0
    again = [sum(a * b for a, b in zip(row, shared, strict=True)) for row in counts]
    assert again == pytest.approx(seconds, rel=1e-6)


def test_an_update_on_gpus_is_its_operations_and_its_optimiser() -> None:
    """One GPU of 0.5B: nothing is gathered. 8 P n FLOPs at 0.4 of 989 TFLOP/s, 28 P bytes."""
    model = hardware.MODELS["0.5B"]
    work = Work(tasks=2, generations=4, tokens=100, prompt_tokens=50)
    assert hardware.trained_tokens(work) == 2 * (50 + 4 * 100)
    seconds = hardware.update_seconds(model, work, 1, steps=2)
    operations = 8 * 0.494e9 * 900 / (0.4 * 989e12)
    assert seconds == pytest.approx(operations + 2 * 28 * 0.494e9 / (0.6 * 3.35e12))


def test_what_is_recommended_fits() -> None:
    for cluster in scale.CLUSTERS:
        model = hardware.MODELS[cluster.model]
        assert hardware.fits(model, cluster.learner_gpus // scale.AGENTS), cluster
        context = scale.JOB.prompt_tokens + scale.JOB.turn_tokens + scale.JOB.tokens
        assert hardware.engine(model, context).places >= 64, cluster
    assert not hardware.fits(hardware.MODELS["70B"], 16)


@pytest.mark.parametrize("name", ["scale.md", "what_to_run.md"])
def test_the_pages_tables_are_those_of_the_result(name: str) -> None:
    details = json.loads((ROOT / "benchmarks/results/cluster_sim.json").read_text())["details"]
    text = (ROOT / "docs" / name).read_text()
    assert page.with_tables(text, details) == text
    begins = [page.BEGIN.format(table) for table in page.TABLES]
    assert any(begin in text for begin in begins)
