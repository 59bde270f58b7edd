"""Prompts are split over replicas; none is lost, doubled or sampled from old weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc
import pytest
import torch

from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.types import (
    Completion,
    FinishReason,
    GenerateRequest,
    PromptSamples,
    PushHeader,
    PushResult,
    SamplingParameters,
    TensorDtype,
    TokenIds,
    WeightsSpan,
)
from antiphon.clients.waiting import progress
from antiphon.learner.rollout.agents import RESYNCS, Agent
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import Replica, Replicas, RunIdentity, RunSupersededError
from antiphon.learner.weights.wire_weights import OwnWeights

SAMPLING = SamplingParameters(0.6, 50, 0.6, 4)
LOST = "WEIGHTS_MISSING"


@dataclass
class Service:
    """Answers with its address as text; each entry of `failures` is raised by one call, after
    `before_failing` completions.
    """

    address: str
    failures: list[CallError] = field(default_factory=list)
    before_failing: int = 0
    version: int = 0
    old: bool = False
    drops: bool = False
    slow: bool = False
    dropped: int = 0
    resumes: list[str] = field(default_factory=list)
    requests: list[GenerateRequest] = field(default_factory=list)
    pushes: int = 0

    async def generate(
        self,
        request: GenerateRequest,
        *,
        timeout: float,
        resume: str = "whole",
        retry: object = None,
    ) -> AsyncIterator[Completion]:
        self.requests.append(request)
        self.resumes.append(resume)
        places = [(p, s) for p, item in enumerate(request.prompts) for s in range(len(item.seeds))]
        for number, (prompt, sample) in enumerate(places):
            await asyncio.sleep(0)
            if self.slow:
                try:
                    await asyncio.Event().wait()
                finally:
                    self.dropped += 1
            if self.failures and number == self.before_failing:
                raise self.failures.pop(0)
            if self.drops and number == len(places) - 1:
                return
            yield Completion(
                prompt_index=prompt,
                sample_index=sample,
                text=self.address,
                token_ids=(1,),
                logprobs=(0.0,),
                kept_sizes=(1,),
                finish_reason=FinishReason.END_TOKEN,
                prompt_token_ids=(1,),
                weights_spans=(WeightsSpan(0, self.version - self.old),),
                instance_id=self.address,
                boot_id="b",
            )

    async def push_weights(
        self,
        header: PushHeader,
        read_tensor: Callable[[int], memoryview],
        *,
        timeout: float,
    ) -> PushResult:
        self.pushes += 1
        self.version = header.version
        return PushResult(header.version, header.digest, "i", "b", 0.0)


def refusal(reason: str, address: str = "a:1") -> CallError:
    return CallError(
        grpc.StatusCode.FAILED_PRECONDITION, "no", address=address, rpc="Generate", reason=reason
    )


async def agent_of(*services: Service, repeats_whole: bool = True) -> Agent:
    identity = RunIdentity("run", 1)
    replicas = Replicas(Replica(service.address, service) for service in services)  # type: ignore[arg-type]
    weights = OwnWeights(lambda: {"w": torch.ones(1)}, TensorDtype.FLOAT32)
    publisher = AgentPublisher(identity, 0, weights, replicas, timeout=5)
    await publisher.publish()
    return Agent(
        identity,
        0,
        replicas,
        publisher,
        sampling=SAMPLING,
        context_length=100,
        timeout=5,
        repeats_whole=repeats_whole,
    )


def prompts(count: int) -> list[PromptSamples]:
    return [
        PromptSamples(TokenIds((index,)), (10 * index, 10 * index + 1)) for index in range(count)
    ]


async def generated(agent: Agent, count: int) -> list[Completion]:
    came: list[Completion] = []
    await agent.generate(prompts(count), came.append)
    return came


async def test_prompts_are_split_over_replicas_and_come_back_in_place() -> None:
    one, two = Service("a:1"), Service("a:2")
    came = await generated(await agent_of(one, two), 3)
    places = {(c.prompt_index, c.sample_index): c.text for c in came}
    assert len(came) == len(places) == 6
    assert [places[index, 0] for index in range(3)] == ["a:1", "a:1", "a:2"]
    assert [p.seeds for p in two.requests[0].prompts] == [(20, 21)]


async def test_batches_that_are_sampled_at_once_take_turns_on_the_replicas() -> None:
    """What the second one asks for fits once a replica is idle, and nothing less wakes it."""
    agent = await agent_of(Service("a:1"), Service("a:2"))
    for replica in agent._replicas:
        replica.batch_rows = 8
    async with asyncio.timeout(10):
        both = await asyncio.gather(generated(agent, 4), generated(agent, 4))
    for came in both:
        assert len({(c.prompt_index, c.sample_index) for c in came}) == 8


async def test_a_replica_without_a_share_is_not_asked() -> None:
    one, two = Service("a:1"), Service("a:2")
    await generated(await agent_of(one, two), 1)
    assert two.requests == []


async def test_every_request_asks_for_the_published_version_at_least() -> None:
    service = Service("a:1")
    await generated(await agent_of(service), 1)
    assert service.requests[0].min_weights_version == 1


@pytest.mark.parametrize("reason", ["WEIGHTS_MISSING", "WEIGHTS_FOREIGN"])
async def test_a_replica_that_lost_its_weights_is_pushed_and_asked_again(reason: str) -> None:
    """S3: a restarted replica never samples from base weights, and no sample is lost."""
    one, two = Service("a:1"), Service("a:2", failures=[refusal(reason)])
    came = await generated(await agent_of(one, two), 2)
    assert len({(c.prompt_index, c.sample_index) for c in came}) == len(came) == 4
    assert (one.pushes, two.pushes) == (1, 2)
    assert len(one.requests) == 1


async def test_what_had_arrived_before_a_replica_restarted_is_not_delivered_twice() -> None:
    """S3: the answers in hand recur and are kept."""
    service = Service("a:1", failures=[refusal(LOST)], before_failing=3)
    came = await generated(await agent_of(service), 2)
    assert sorted((c.prompt_index, c.sample_index) for c in came) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]


async def test_a_replica_that_keeps_losing_its_weights_ends_the_run() -> None:
    service = Service("a:1", failures=[refusal(LOST)] * (RESYNCS + 1))
    with pytest.raises(CallError, match=r"Generate at a:1.*WEIGHTS_MISSING"):
        await generated(await agent_of(service), 1)
    assert service.pushes == 1 + RESYNCS


async def test_a_superseded_learner_stops_and_does_not_push() -> None:
    """S7: a lower incarnation is told and stops."""
    service = Service("a:1", failures=[refusal("INCARNATION_SUPERSEDED")])
    with pytest.raises(RunSupersededError, match="run run"):
        await generated(await agent_of(service), 1)
    assert service.pushes == 1


def unreachable(address: str) -> CallError:
    return CallError(
        grpc.StatusCode.DEADLINE_EXCEEDED, "no answer", address=address, rpc="Generate", attempts=2
    )


async def test_a_dead_replica_is_named_by_address_and_call() -> None:
    """S5: retries used up, the root error is what the user sees."""
    with pytest.raises(CallError, match=r"Generate at a:2 failed: DEADLINE_EXCEEDED"):
        await generated(await agent_of(Service("a:2", failures=[unreachable("a:2")])), 2)


async def test_the_others_take_what_a_dead_replica_has_not_delivered() -> None:
    """S3: no sample is lost or doubled."""
    dying = Service("a:2", failures=[unreachable("a:2")], before_failing=3)
    agent = await agent_of(Service("a:1"), dying)
    came = await generated(agent, 4)
    assert sorted((c.prompt_index, c.sample_index) for c in came) == [
        (prompt, sample) for prompt in range(4) for sample in range(2)
    ]
    by = {(c.prompt_index, c.sample_index): c.text for c in came}
    assert (by[3, 0], by[3, 1]) == ("a:2", "a:1"), "its third completion came, its fourth did not"
    assert {by[2, 0], by[2, 1]} == {"a:2"}
    assert {c.text for c in await generated(agent, 2)} == {"a:1"}, "it gets no prompts any more"


async def test_the_last_replica_to_die_ends_the_run() -> None:
    agent = await agent_of(
        Service("a:1", failures=[unreachable("a:1")]), Service("a:2", failures=[unreachable("a:2")])
    )
    with pytest.raises(CallError, match="DEADLINE_EXCEEDED"):
        await generated(agent, 2)


async def test_a_completion_of_older_weights_is_refused() -> None:
    with pytest.raises(ContractError, match="wanted 1 at least"):
        await generated(await agent_of(Service("a:1", old=True)), 1)


async def test_a_stream_that_ends_early_is_refused_naming_what_lacks() -> None:
    """S9: missing answers are an error that names them."""
    with pytest.raises(ContractError, match=r"without the completions \[\(1, 1\)\]"):
        await generated(await agent_of(Service("a:1", drops=True)), 2)


@pytest.mark.parametrize(("whole", "resume"), [(True, "whole"), (False, "missing")])
async def test_a_broken_stream_is_asked_again_whole_or_for_what_is_missing(
    whole: bool, resume: str
) -> None:
    service = Service("a:1")
    await generated(await agent_of(service, repeats_whole=whole), 1)
    assert service.resumes == [resume]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has not ended soon after the others is behind."""
    monkeypatch.setattr("antiphon.learner.rollout.work_queue.PATIENCE", 0.05)


@pytest.mark.usefixtures("impatient")
async def test_the_others_take_what_a_replica_that_is_behind_has_not_delivered() -> None:
    slow = Service("a:3", slow=True)
    quick = [Service("a:1"), Service("a:2")]
    agent = await agent_of(*quick, slow)
    came = await generated(agent, 6)
    assert sorted((c.prompt_index, c.sample_index) for c in came) == [
        (prompt, sample) for prompt in range(6) for sample in range(2)
    ]
    assert {c.text for c in came} == {"a:1", "a:2"}
    asked = [[p.seeds[0] for p in r.prompts] for service in quick for r in service.requests]
    assert asked == [[0, 10], [40, 50], [20, 30]], "it is asked again as it was"
    assert slow.dropped == 1, "what it still samples is dropped"


@pytest.mark.usefixtures("impatient")
async def test_a_replica_that_is_behind_gets_its_share_again_once_it_keeps_pace_on_trial() -> None:
    slow = Service("a:3", slow=True)
    quick = [Service("a:1"), Service("a:2")]
    agent = await agent_of(*quick, slow)
    await generated(agent, 6)
    came = await generated(agent, 6)
    assert {c.text for c in came} == {"a:1", "a:2"}
    assert [len(service.requests) for service in quick] == [3, 2], "nobody waited for it"
    assert [p.seeds[0] for p in slow.requests[1].prompts] == [0, 10], "half of a chunk on trial"
    slow.slow = False
    await generated(agent, 6)
    assert {c.text for c in await generated(agent, 6)} == {"a:1", "a:2", "a:3"}


@pytest.mark.usefixtures("impatient")
async def test_a_replica_that_is_behind_is_relied_on_where_all_others_are_gone() -> None:
    slow, quick = Service("a:2", slow=True), Service("a:1")
    agent = await agent_of(quick, slow)
    await generated(agent, 2)
    slow.slow, quick.failures = False, [unreachable("a:1")]
    came = await generated(agent, 2)
    assert len({(c.prompt_index, c.sample_index) for c in came}) == len(came) == 4
    assert {c.text for c in came} == {"a:2"}


async def test_a_replica_alone_is_never_behind() -> None:
    """One batch per turn, asked once: what is sampled stays the same bit for bit."""
    service = Service("a:1", slow=True)
    running = asyncio.create_task(generated(await agent_of(service), 2))
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(service.requests) == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_replica_that_lost_its_weights_in_an_update_waits_for_the_next_version() -> None:
    """S3, with `max_staleness` above 0: the weights change while it samples."""
    service = Service("a:1", failures=[refusal(LOST)])
    agent = await agent_of(service, repeats_whole=False)
    publisher = agent._publisher
    async with publisher.moving:
        running = asyncio.create_task(generated(agent, 1))
        while not service.requests:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert service.pushes == 1
        await publisher.publish()
    assert {c.weights_spans[0].weights_version for c in await running} == {2}


def failed(code: grpc.StatusCode) -> CallError:
    return CallError(code, "gone", address="a:1", rpc="Generate")


async def with_replicas_that_return(agent: Agent, count: int) -> list[Completion]:
    """What is generated while every replica that is lost is back at once."""
    replicas = agent._replicas
    replicas.patience = 60.0

    async def bring_back() -> None:
        while True:
            await replicas.until(lambda: len(replicas.live) < len(replicas))
            for replica in replicas:
                replicas.take_back(replica)

    bringing = asyncio.create_task(bring_back())
    try:
        async with asyncio.timeout(20):
            return await generated(agent, count)
    finally:
        bringing.cancel()


@pytest.mark.parametrize(
    ("code", "askings"),
    [(grpc.StatusCode.UNAVAILABLE, 8), (grpc.StatusCode.DEADLINE_EXCEEDED, 2)],
)
async def test_a_chunk_that_fails_on_every_replica_ends_with_that_error(
    code: grpc.StatusCode, askings: int
) -> None:
    """S5: prompts that take every replica down are not asked for without end."""
    services = [Service(f"a:{n}", [failed(code)] * 50, before_failing=1) for n in (1, 2)]
    agent = await agent_of(*services)
    before = progress()
    with pytest.raises(CallError, match=rf"Generate at a:1 failed: {code.name}.*tried {askings}"):
        await with_replicas_that_return(agent, 1)
    # The first asking delivers its first completion; its failure is the first that counts.
    assert sum(len(service.requests) for service in services) == askings
    assert progress() == before + 1, "what comes again is no progress"


async def test_a_chunk_that_gets_on_may_fail_any_number_of_times() -> None:
    service = Service("a:1", [failed(grpc.StatusCode.DEADLINE_EXCEEDED)] * 50, before_failing=1)
    agent = await agent_of(service, repeats_whole=False)
    came = await with_replicas_that_return(agent, 6)
    assert len({(c.prompt_index, c.sample_index) for c in came}) == len(came) == 12
    assert len(service.requests) == 12
