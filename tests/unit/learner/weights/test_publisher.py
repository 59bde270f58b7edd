"""Versions count what replicas applied; every replica gets the same bytes on its own channel."""

from __future__ import annotations

import asyncio

import grpc
import pytest
import torch
from tests.unit.learner.weights.pushed import Receiver, failure, publisher

from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.types import (
    FieldError,
    PushKind,
)
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import (
    Replicas,
    RunSupersededError,
    ServiceTakenError,
)


async def test_versions_grow_by_one_and_count_what_every_replica_applied() -> None:
    receiver = Receiver()
    made, replicas = publisher({"w": torch.ones(2)}, receiver)
    assert made.version == 0
    first, second = await made.publish(), await made.publish()
    assert (first.version, second.version, made.version) == (1, 2, 2)
    header = receiver.pushes[0][0]
    assert (header.run_id, header.incarnation, header.agent, header.kind) == (
        "run-1",
        3,
        1,
        PushKind.FULL,
    )
    assert replicas[0].acknowledged.version == 2


async def test_all_replicas_get_the_same_bytes_in_the_wire_format() -> None:
    one, two = Receiver("a:1"), Receiver("a:2")
    tensors = {"b": torch.tensor([1.0, 2.0]), "a": torch.tensor([[0.5]])}
    made, _ = publisher(tensors, one, two)
    published = await made.publish()
    assert one.pushes == two.pushes
    header, sent = one.pushes[0]
    assert [spec.name for spec in header.tensors] == ["a", "b"]
    # bfloat16 is the upper half of float32: 0.5 is 3f00, 1.0 is 3f80, 2.0 is 4000.
    assert sent == {"a": bytes.fromhex("003f"), "b": bytes.fromhex("803f0040")}
    assert published.nbytes == 2 * 6
    assert published.pause_seconds == 0.25


async def test_a_push_that_fails_leaves_the_version_as_it_was() -> None:
    """S2: a version counts once it is applied, never when it is asked for."""
    good, bad = Receiver("a:1"), Receiver("a:2", error=failure("PUSH_VERSION_CONFLICT"))
    made, _ = publisher({"w": torch.ones(1)}, good, bad)
    with pytest.raises(CallError, match="PUSH_VERSION_CONFLICT"):
        await made.publish()
    assert made.version == 0


async def test_a_dead_replica_holds_up_nobody_and_takes_its_share_again_once_reached() -> None:
    dead = Receiver(
        "a:2",
        error=CallError(grpc.StatusCode.UNAVAILABLE, "gone", address="a:2", rpc="PushWeights"),
    )
    alive = Receiver("a:1")
    agent, replicas = publisher({"w": torch.ones(2)}, alive, dead)
    assert (await agent.publish()).version == 1
    assert [replica.reachable for replica in replicas] == [True, False]
    dead.error = None
    assert (await agent.publish()).version == 2
    async with asyncio.timeout(5):
        while not replicas[1].reachable:
            await asyncio.sleep(0)
    assert [header.version for header, _ in dead.pushes] == [2]
    assert replicas[1].acknowledged.version == 2
    await agent.close()


async def left_out() -> tuple[AgentPublisher, Receiver, Replicas]:
    """A publisher whose second replica could not be reached by the first publish."""
    gone = CallError(grpc.StatusCode.UNAVAILABLE, "gone", address="a:2", rpc="PushWeights")
    back = Receiver("a:2", error=gone)
    made, replicas = publisher({"w": torch.ones(2)}, Receiver("a:1"), back)
    await made.publish()
    return made, back, replicas


async def test_a_learner_that_is_told_by_a_returning_replica_that_it_is_superseded_stops(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S7: the push beside everything else is awaited by nobody; the next publish raises."""
    made, back, _ = await left_out()
    back.error = failure("INCARNATION_SUPERSEDED", incarnation="7")
    await made.publish()
    async with asyncio.timeout(5):
        while "incarnation 7" not in caplog.text:
            await asyncio.sleep(0)
    with pytest.raises(RunSupersededError, match=r"incarnation 7, this learner is 3"):
        await made.publish()
    assert made.version == 2


async def test_a_returning_replica_that_breaks_the_contract_is_logged_and_stays_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, back, replicas = await left_out()
    back.error, back.lies = None, True
    await made.publish()
    async with asyncio.timeout(5):
        while "a:2 stays left out: its push failed" not in caplog.text:
            await asyncio.sleep(0)
    assert "wanted version 2" in caplog.text
    assert not replicas[1].reachable
    await made.close()


async def test_a_publish_that_reaches_nobody_ends_the_run() -> None:
    gone = CallError(grpc.StatusCode.UNAVAILABLE, "gone", address="a:1", rpc="PushWeights")
    agent, _ = publisher({"w": torch.ones(2)}, Receiver(error=gone), Receiver("a:2", error=gone))
    with pytest.raises(CallError, match="gone"):
        await agent.publish()


async def test_an_answer_that_acknowledges_another_version_is_refused() -> None:
    made, replicas = publisher({"w": torch.ones(1)}, Receiver(lies=True))
    with pytest.raises(ContractError, match="wanted version 1"):
        await made.publish()
    assert (made.version, replicas[0].acknowledged.version) == (0, 0)


async def test_the_published_version_goes_again_to_a_replica_that_lost_it() -> None:
    """S3: the same version with the same digest, and only to that replica."""
    one, two = Receiver("a:1"), Receiver("a:2")
    made, replicas = publisher({"w": torch.ones(1)}, one, two)
    await made.publish()
    await made.push_again(replicas[1])
    assert len(one.pushes) == 1
    assert two.pushes[0] == two.pushes[1]
    assert made.version == 1


async def test_weights_that_moved_on_are_never_sent_as_the_published_version() -> None:
    weights = torch.ones(1)
    receiver = Receiver()
    made, replicas = publisher({"w": weights}, receiver)
    await made.publish()
    weights.add_(1)
    with pytest.raises(RuntimeError, match="changed since version 1"):
        await made.push_again(replicas[0])
    assert len(receiver.pushes) == 1


async def test_a_superseded_learner_is_told_so() -> None:
    """S7: the lower incarnation stops and says which one took over."""
    error = failure("INCARNATION_SUPERSEDED", incarnation="7")
    made, _ = publisher({"w": torch.ones(1)}, Receiver(error=error))
    with pytest.raises(RunSupersededError, match=r"incarnation 7, this learner is 3"):
        await made.publish()


async def test_a_service_of_another_run_is_named_with_its_lease() -> None:
    error = failure("RUN_LEASE_HELD", run_id="other", lease_seconds_left="41")
    made, _ = publisher({"w": torch.ones(1)}, Receiver(error=error))
    with pytest.raises(ServiceTakenError, match=r"a:1 belongs to run other.*41 s left"):
        await made.publish()


async def test_a_resumed_run_publishes_the_same_version_again_then_counts_on() -> None:
    """S7: another incarnation may push any version; it is the weights that must be the same."""
    before, _ = publisher({"w": torch.ones(2)}, Receiver())
    await before.publish()
    await before.publish()
    receiver, weights = Receiver(), {"w": torch.ones(2)}
    after, _ = publisher(weights, receiver)
    after.load_state_dict(before.state_dict())
    assert (await after.publish()).version == 2
    weights["w"] += 1
    assert (await after.publish()).version == 3
    assert receiver.pushes[0][0].digest != receiver.pushes[1][0].digest


async def test_weights_that_are_not_those_of_the_checkpoint_are_not_published() -> None:
    """What is not trained is not in a checkpoint; another model's frozen layers would differ."""
    before, _ = publisher({"w": torch.ones(2)}, Receiver())
    await before.publish()
    receiver = Receiver()
    after, _ = publisher({"w": torch.zeros(2)}, receiver)
    after.load_state_dict(before.state_dict())
    with pytest.raises(FieldError, match=r"agents\[1\]: got weights with digest .* first model"):
        await after.publish()
    assert receiver.pushes == []
