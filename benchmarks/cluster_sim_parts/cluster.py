"""A run on a cluster, event by event: what the learner's loop, pipeline and publishers do.

    batch:    for each turn, all agents sample all nodes; a node is scored once it is complete
    pipeline: `staleness` batches are sampled beside the update (S = 0: none)
    publish:  encode, send, apply on every replica; the next batch begins after that

The learner's calls, completions and nodes pass through its one event loop, a `Thread`.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import simpy
from benchmarks.cluster_sim_parts.costs import Costs, Work
from benchmarks.cluster_sim_parts.replica import Replica, Row
from benchmarks.cluster_sim_parts.servers import Cores, Link, Thread

Process = Generator[simpy.Event, Any, Any]

BEHIND = 2.0
"""A replica that is so many times slower than the others gets no share of its own."""


@dataclass(frozen=True)
class Found:
    """What a run took, over the rollout batches that were measured.

    Attributes:
        seconds: From one publish to the next, each.
        staleness: The most publishes that lay between sampling and training.
        mean_staleness: The mean over rollout batches.
        tokens: Sampled per step.
        idle: The share of the time in which the replicas sampled nothing, mean of all.
        learner: The share in which an update was under way.
        loop: The share in which the learner's event loop worked.
        link: The share in which anything left the learner's link.
        nbytes: Bytes that left the learner's link per step.
        push_seconds: From encoding to the last answer, mean.
    """

    seconds: tuple[float, ...]
    staleness: int
    mean_staleness: float
    tokens: float
    idle: float
    learner: float
    loop: float
    link: float
    nbytes: float
    push_seconds: float

    @property
    def step(self) -> float:
        """Seconds of a step, mean."""
        return sum(self.seconds) / len(self.seconds)


def simulate(work: Work, costs: Costs, seed: int = 0) -> Found:
    """Run a job on a cluster."""
    return Cluster(work, costs, seed).run()


class Cluster:
    """The learner and all replicas of all agents.

    Args:
        work: What is trained.
        costs: What everything costs.
        seed: Of the lengths of completions.
    """

    def __init__(self, work: Work, costs: Costs, seed: int = 0) -> None:
        self._work = work
        self._costs = costs
        self._random = random.Random(seed)
        self._env = env = simpy.Environment()
        self._services = Cores(env, costs.cores)
        self._loop = Thread(env, self._services)
        push = costs.push
        self._link = Link(env, push.link, push.replica_link)
        self._store = Link(env, push.store_link, push.replica_link)
        self._replicas = [
            [
                Replica(env, costs.engine, work.slow.get(n, 1.0), waits=costs.on_swap == "finish")
                for n in range(work.replicas)
            ]
            for _ in range(work.agents)
        ]
        self._settled = env.event()
        self._published = 0
        self._updating = 0.0
        self._staleness: list[int] = []
        self._push_seconds: list[float] = []
        self._ends: list[float] = []
        self._marks: list[dict[str, float]] = []

    def run(self) -> Found:
        """The whole run."""
        self._env.run(self._env.process(self._train()))
        first, last = self._marks[self._work.warm], self._marks[-1]
        whole = self._ends[-1] - self._ends[self._work.warm]
        steps = self._work.steps
        shares = {name: (last[name] - first[name]) / whole for name in first}
        staleness = self._staleness[-steps:]
        return Found(
            seconds=tuple(b - a for a, b in pairwise(self._ends[self._work.warm :])),
            staleness=max(staleness),
            mean_staleness=sum(staleness) / steps,
            tokens=(last["tokens"] - first["tokens"]) / steps,
            idle=1 - shares["sampling"],
            learner=shares["updating"],
            loop=shares["loop"],
            link=shares["link"],
            nbytes=(last["nbytes"] - first["nbytes"]) / steps,
            push_seconds=sum(self._push_seconds[-steps:]) / steps,
        )

    def _mark(self) -> None:
        every = [replica for of_agent in self._replicas for replica in of_agent]
        self._ends.append(self._env.now)
        self._marks.append(
            {
                "sampling": sum(replica.busy for replica in every) / len(every),
                "tokens": float(sum(replica.tokens for replica in every)),
                "updating": self._updating,
                "loop": self._loop.busy,
                "link": self._link.busy,
                "nbytes": self._link.nbytes,
            }
        )

    # The learner's loop.

    def _train(self) -> Process:
        growing: deque[simpy.Process] = deque()
        yield from self._publish()
        self._mark()
        for _ in range(self._work.warm + self._work.steps):
            while len(growing) <= self._work.staleness:
                growing.append(self._env.process(self._grow()))
            oldest = yield growing.popleft()
            self._staleness.append(self._published - oldest)
            yield self._loop.work(self._costs.learner.per_step)
            yield from self._update()
            yield from self._publish()
            self._mark()

    def _update(self) -> Process:
        began = self._env.now
        agents = 1 if self._work.side_by_side else self._work.agents
        yield self._env.timeout(self._work.update_seconds * agents)
        self._updating += self._env.now - began

    # Sampling.

    def _grow(self) -> Process:
        """One rollout batch; the oldest version that it was sampled from."""
        oldest = math.inf
        for turn, nodes in enumerate(self._work.nodes):
            opened = Turn(nodes * [self._work.agents * self._work.generations], self._env.event())
            prompt = self._work.prompt_tokens + turn * self._work.turn_tokens
            for of_agent in self._replicas:
                self._env.process(self._generate(of_agent, prompt, opened))
            yield opened.done
            oldest = min(oldest, opened.oldest)
        return oldest

    def _generate(self, replicas: Sequence[Replica], prompt: int, turn: Turn) -> Process:
        """Ask an agent's replicas for all nodes of a turn."""
        work = self._work

        delivered = partial(self._deliver, turn)
        rows = [
            [Row(node, self._length(), prompt, delivered) for _ in range(work.generations)]
            for node in range(len(turn.missing))
        ]
        keep_pace = [r for n, r in enumerate(replicas) if work.slow.get(n, 1.0) < BEHIND]
        yield from self._ask(keep_pace or replicas, rows)

    def _ask(self, replicas: Sequence[Replica], rows: Sequence[list[Row]]) -> Process:
        """Cut the prompts into chunks; one goes to whoever has room and the least to do."""
        chunks = deque(self._chunks(len(rows), len(replicas)))

        def tell(row: Row, replica: Replica, deliver: Callable[[Row], None]) -> None:
            full = not self._has_room(replica)
            replica.outstanding -= self._work.tokens
            deliver(row)
            roomy = (full and self._has_room(replica)) or not replica.outstanding
            if roomy and self._settled.callbacks:
                self._settled.succeed()
                self._settled = self._env.event()

        while chunks:
            replica = self._roomiest(replicas, len(chunks))
            if replica is None:
                yield self._settled
                continue
            asked = [row for place in chunks.popleft() for row in rows[place]]
            for row in asked:
                row.deliver = partial(tell, replica=replica, deliver=row.deliver)
            replica.outstanding += len(asked) * self._work.tokens
            yield self._loop.work(self._costs.learner.per_call)
            self._env.process(self._call(replica, asked))

    def _chunks(self, count: int, replicas: int) -> list[range]:
        """Contiguous runs of prompts: as many for each replica as it takes to fit its places."""
        share = -(-count // replicas)
        at_once = max(1, self._costs.engine.places // self._work.generations)
        whole = self._work.balance == "shares" or replicas == 1
        chunks = min(count, replicas * (1 if whole else -(-share // at_once)))
        small, larger = divmod(count, chunks)
        stops = accumulate((small + (n < larger) for n in range(chunks)), initial=0)
        return [range(start, stop) for start, stop in pairwise(stops)]

    def _roomiest(self, replicas: Sequence[Replica], waiting: int) -> Replica | None:
        """Whoever has the fewest tokens outstanding, if there is room for more."""
        least = min(replicas, key=lambda replica: replica.outstanding)
        always = len(replicas) == 1 or self._work.balance == "shares"
        ahead = waiting > len(replicas) and self._has_room(least)
        return least if always or ahead or not least.outstanding else None

    def _has_room(self, replica: Replica) -> bool:
        """Whether half of what it computes at once is outstanding at most."""
        return 2 * replica.outstanding <= self._costs.engine.places * self._work.tokens

    def _call(self, replica: Replica, rows: Sequence[Row]) -> Process:
        yield self._services.work(self._costs.service.per_call)
        replica.ask(rows)

    def _deliver(self, turn: Turn, row: Row) -> None:
        """A completion goes from its service to the learner's event loop."""
        service, learner = self._costs.service, self._costs.learner

        def sent(_: object = None) -> None:
            seconds = learner.per_completion + row.length * learner.per_token
            self._loop.work(seconds).callbacks.append(lambda _: self._arrived(turn, row))

        if seconds := service.per_completion + row.length * service.per_token:
            self._services.work(seconds).callbacks.append(sent)
        else:
            sent()

    def _arrived(self, turn: Turn, row: Row) -> None:
        turn.oldest = min(turn.oldest, row.version)
        turn.missing[row.node] -= 1
        if turn.missing[row.node] == 0:
            self._env.process(self._score(turn))

    def _score(self, turn: Turn) -> Process:
        """A node that is complete is scored, and its children are opened."""
        yield self._loop.work(self._costs.learner.per_node)
        yield self._services.work(self._costs.service.per_node)
        yield self._env.timeout(self._costs.score_seconds + self._costs.transition_seconds)
        turn.left -= 1
        if turn.left == 0:
            turn.done.succeed()

    def _length(self) -> int:
        shortest = max(1, round(self._work.tokens * self._work.shortest))
        return self._random.randint(shortest, self._work.tokens)

    # Publishing.

    def _publish(self) -> Process:
        began = self._env.now
        agents = [self._env.process(self._publish_agent(some)) for some in self._replicas]
        yield self._env.all_of(agents)
        self._published += 1
        self._push_seconds.append(self._env.now - began)

    def _publish_agent(self, replicas: Sequence[Replica]) -> Process:
        """Encode once; the pushes of all replicas run side by side."""
        push, version = self._costs.push, self._published + 1
        yield self._env.timeout(push.encode_seconds)
        if push.fanout == "store":
            yield self._link.send(push.nbytes)
        pushes = []
        for number, replica in enumerate(replicas):
            direct = push.fanout != "tree" or number < push.children
            yield self._loop.work(self._costs.learner.per_push if direct else 0.0)
            pushes.append(self._env.process(self._push(replica, number, version)))
        yield self._env.all_of(pushes)

    def _push(self, replica: Replica, number: int, version: int) -> Process:
        push = self._costs.push
        if push.fanout == "each" or (push.fanout == "tree" and number < push.children):
            yield self._link.send(push.nbytes)
        elif push.fanout == "store":
            yield self._store.send(push.nbytes)
        else:
            yield self._env.timeout(self._through_the_tree(number))
        yield self._services.work(self._costs.service.per_push)
        yield replica.swap(version, push.apply_seconds)

    def _through_the_tree(self, number: int) -> float:
        """Seconds until a replica below the first ones has all bytes.

        Chunks are passed on as they come: the whole takes what the narrowest link does for all its
        children, and each hop adds a chunk.
        """
        push, depth = self._costs.push, 0
        while number >= push.children:
            number, depth = number // push.children - 1, depth + 1
        chunk = min(push.chunk, push.nbytes)
        agents = self._work.agents
        out = push.replica_link / push.children
        narrowest = min(push.link / (push.children * agents), out)
        return push.nbytes / narrowest + depth * (push.hop_seconds + chunk / out)


@dataclass(eq=False)
class Turn:
    """Nodes of one turn of one rollout batch: completions that each lacks."""

    missing: list[int]
    done: simpy.Event
    oldest: float = math.inf

    def __post_init__(self) -> None:
        self.left = len(self.missing)
