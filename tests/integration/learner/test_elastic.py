"""Replicas that join, drain, die and lag in the middle of a turn, behind a list that changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.integration.learner.generation_servers import QUICK, Service, prompts, sampled

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError
from antiphon.clients.generation import GenerationClient
from antiphon.clients.types import Completion, SamplingParameters, TensorDtype
from antiphon.learner.rollout.agents import Agent
from antiphon.learner.weights.connect import admit, agreed, answering, needs_of
from antiphon.learner.weights.membership import Membership, resolve_all
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import Replica, Replicas, RunIdentity
from antiphon.learner.weights.wire_weights import OwnWeights
from antiphon.services.common.models import load_model
from antiphon.services.common.tensors import wire_tensors

ROWS = 4
"""Completions that a service computes at once: two prompts."""
PROMPTS = 24


@dataclass
class Elastic:
    """A learner of one agent behind a list of addresses."""

    model: Path
    folder: Path
    services: list[Service] = field(default_factory=list)

    @property
    def name(self) -> Endpoint:
        return Endpoint(address=f"file://{self.folder}/replicas")

    def listed(self, *services: Service) -> None:
        lines = "".join(f"{service.address}\n" for service in services)
        part = self.folder / ".replicas"
        part.write_text(f"# agent 0\n{lines}")
        part.replace(self.folder / "replicas")

    async def service(self) -> Service:
        number = len(self.services)
        made = Service(self.model, self.folder / f"{number}.sock", max_batch_size=ROWS)
        self.services.append(made)
        await made.start()
        return made

    @asynccontextmanager
    async def learner(self, *, patience: float = 20.0) -> AsyncIterator[None]:
        """Its publisher, agent and membership, with the first version published."""
        async with AsyncExitStack() as stack:

            def connect(endpoint: Endpoint) -> Replica:
                client = GenerationClient(endpoint, retry=QUICK)
                stack.push_async_callback(client.close)
                return Replica(endpoint.address, client)

            identity = RunIdentity("run", 1)
            found = await resolve_all([self.name], timeout=5)
            replicas = self.replicas = Replicas(map(connect, found), patience=patience)
            weights = load_model(self.model, dtype=torch.float32)
            infos = await answering(replicas, all_of_them=False, start_timeout=20, timeout=1)
            needs = needs_of(0, weights, None, full_logprobs=False)
            terms = agreed(infos, needs, weights, full_logprobs=False)
            self.weights = wire_tensors(weights)
            self.publisher = AgentPublisher(
                identity,
                0,
                OwnWeights(lambda: self.weights, TensorDtype.BFLOAT16),
                replicas,
                timeout=20,
            )
            self.agent = Agent(
                identity,
                0,
                replicas,
                self.publisher,
                sampling=SamplingParameters(1.0, None, None, 12),
                context_length=256,
                timeout=20,
            )
            stack.push_async_callback(self.publisher.close)
            await self.publisher.publish()
            Membership(
                [self.name],
                replicas,
                self.publisher,
                connect=connect,
                admit=partial(admit, terms=terms, timeout=5),
                every=0.02,
                timeout=5,
            ).start(stack)
            yield

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)


@pytest.fixture
async def elastic(tiny_model_folder: Path, tmp_path: Path) -> AsyncIterator[Elastic]:
    made = Elastic(tiny_model_folder, tmp_path)
    try:
        yield made
    finally:
        for service in made.services:
            await service.stop()


def tokens_of(service: Service, came: Sequence[Completion]) -> int:
    return sum(len(c.token_ids) for c in came if c.boot_id == service.boot_id)


def ids(came: dict[tuple[int, int], Completion]) -> dict[tuple[int, int], tuple[int, ...]]:
    return {place: completion.token_ids for place, completion in came.items()}


async def test_a_replica_that_joins_in_the_middle_of_a_turn_gets_weights_and_work(
    elastic: Elastic,
) -> None:
    one = await elastic.service()
    elastic.listed(one)
    async with elastic.learner():
        alone = await sampled(elastic.agent, prompts(PROMPTS))
        two = await elastic.service()
        joined = asyncio.Event()

        async def hold() -> None:
            if len(one.requests) > 16:  # some chunks of the second turn
                await joined.wait()

        one.before_request = hold
        async with asyncio.TaskGroup() as group:
            turn = group.create_task(sampled(elastic.agent, prompts(PROMPTS)))
            elastic.listed(one, two)
            await elastic.until(lambda: len(two.requests) > 1)
            joined.set()
        came = turn.result()
    assert tokens_of(two, list(came.values())) > 0
    assert {c.weights_spans[0].weights_version for c in came.values()} == {1}
    assert ids(came) == ids(alone), "a chunk gives the same, whoever is asked"


async def test_a_replica_that_is_killed_in_the_middle_of_a_turn_loses_and_doubles_nothing(
    elastic: Elastic,
) -> None:
    one, two = await elastic.service(), await elastic.service()
    elastic.listed(one, two)
    async with elastic.learner():
        whole = await sampled(elastic.agent, prompts(PROMPTS))
        died: list[asyncio.Task[None]] = []

        def seen(completion: Completion) -> None:
            if completion.boot_id == two.boot_id and not died:
                died.append(asyncio.create_task(two.stop()))

        came = await sampled(elastic.agent, prompts(PROMPTS), seen)
        await died[0]
        assert ids(came) == ids(whole)
        assert len(elastic.replicas.live) == 1
        await two.start()
        await elastic.until(lambda: len(elastic.replicas.live) == 2)
        again = await sampled(elastic.agent, prompts(PROMPTS))
        assert tokens_of(two, list(again.values())) > 0, "it came back and has its weights"
        assert ids(again) == ids(whole)


async def test_a_replica_that_drains_ends_what_it_is_at_and_gets_nothing_more(
    elastic: Elastic,
) -> None:
    """It says NOT_SERVING, ends what it was asked for within its grace, and its work moves."""
    one, two = await elastic.service(), await elastic.service()
    elastic.listed(one, two)
    async with elastic.learner():
        drained, asked = asyncio.Event(), 0

        async def hold() -> None:
            await drained.wait()

        one.before_request = two.before_request = hold
        async with asyncio.TaskGroup() as group:
            turn = group.create_task(sampled(elastic.agent, prompts(PROMPTS)))
            await elastic.until(lambda: bool(one.requests and two.requests))
            stopping = group.create_task(two.stop(grace=20))
            await elastic.until(lambda: len(elastic.replicas.live) == 1)
            asked = len(two.requests)
            drained.set()
        came = turn.result()
        await stopping
    assert len(came) == 2 * PROMPTS
    assert len(two.requests) == asked
    assert tokens_of(two, list(came.values())) > 0, "what it was at was not asked again"
    assert len(one.requests) + asked == PROMPTS * 2 // ROWS


async def test_a_replica_whose_address_is_gone_is_let_go(elastic: Elastic) -> None:
    one, two = await elastic.service(), await elastic.service()
    elastic.listed(one, two)
    async with elastic.learner():
        elastic.listed(one)
        await elastic.until(lambda: len(elastic.replicas) == 1)
        asked = len(two.requests)
        came = await sampled(elastic.agent, prompts(PROMPTS))
        assert len(came) == 2 * PROMPTS
        assert len(two.requests) == asked
        (elastic.folder / "replicas").unlink()
        await sampled(elastic.agent, prompts(2))  # a list that is away takes nobody away


async def test_a_slow_replica_gets_less(elastic: Elastic) -> None:
    """In tokens: it answers each request only once the other has answered five."""
    quick, slow = await elastic.service(), await elastic.service()
    elastic.listed(quick, slow)
    async with elastic.learner():

        async def hold() -> None:
            wanted = 5 * len(slow.requests)
            async with asyncio.timeout(20):
                while len(quick.requests) < min(wanted, 9):
                    await asyncio.sleep(0.001)

        slow.before_request = hold
        came = list((await sampled(elastic.agent, prompts(PROMPTS))).values())
    assert len(came) == 2 * PROMPTS
    assert 0 < tokens_of(slow, came) <= tokens_of(quick, came) / 2


async def test_a_replica_that_does_not_fit_is_left_out_and_the_run_goes_on(
    elastic: Elastic, tiny_folders: object, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await elastic.service(), await elastic.service()
    elastic.listed(one)
    async with elastic.learner():
        two._engine.info = two._engine.info.__class__(
            **{
                name: getattr(two._engine.info, name)
                for name in two._engine.info.__slots__
                if name != "context_length"
            },
            context_length=8,
        )
        elastic.listed(one, two)
        await elastic.until(lambda: "a context of" in caplog.text)
        assert len(await sampled(elastic.agent, prompts(4))) == 8
        assert two.requests == []


async def test_a_turn_without_any_replica_waits_for_one_and_then_ends_with_the_root_error(
    elastic: Elastic,
) -> None:
    one = await elastic.service()
    elastic.listed(one)
    async with elastic.learner(patience=20.0):
        await one.stop()
        async with asyncio.TaskGroup() as group:
            turn = group.create_task(sampled(elastic.agent, prompts(4)))
            await one.start()
        assert len(turn.result()) == 8
        elastic.replicas.patience = 0.2
        await one.stop()
        with pytest.raises(CallError, match=r"Generate at unix:.*UNAVAILABLE"):
            await sampled(elastic.agent, prompts(4))


async def test_a_publish_while_nobody_is_there_counts_and_reaches_who_comes_back(
    elastic: Elastic,
) -> None:
    one = await elastic.service()
    elastic.listed(one)
    async with elastic.learner():
        await one.stop()
        assert (await elastic.publisher.publish()).version == 2
        await one.start()
        came = await sampled(elastic.agent, prompts(2))
        assert {c.weights_spans[0].weights_version for c in came.values()} == {2}
