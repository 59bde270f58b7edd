"""Versions count what replicas applied; every replica gets the same bytes on its own channel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import pytest
import torch

from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.types import FieldError, PushHeader, PushKind, PushResult, TensorDtype
from antiphon.learner.publisher import AgentPublisher
from antiphon.learner.replicas import (
    Replica,
    RunIdentity,
    RunSupersededError,
    ServiceTakenError,
)

IDENTITY = RunIdentity("run-1", 3)


@dataclass
class Receiver:
    """Takes pushes whole, or fails with `error`; `lies` about the version that it applied."""

    address: str = "a:1"
    error: CallError | None = None
    lies: bool = False
    pushes: list[tuple[PushHeader, dict[str, bytes]]] = field(default_factory=list)

    async def push_weights(
        self,
        header: PushHeader,
        read_tensor: Callable[[int], memoryview],
        *,
        timeout: float,
    ) -> PushResult:
        if self.error is not None:
            raise self.error
        tensors = {
            spec.name: bytes(read_tensor(index)) for index, spec in enumerate(header.tensors)
        }
        self.pushes.append((header, tensors))
        version = header.version - 1 if self.lies else header.version
        return PushResult(version, header.digest, "i", "b", pause_seconds=0.25)


def failure(reason: str, **metadata: str) -> CallError:
    return CallError(
        grpc.StatusCode.FAILED_PRECONDITION,
        "no",
        address="a:1",
        rpc="PushWeights",
        reason=reason,
        metadata=metadata,
    )


def publisher(
    tensors: dict[str, torch.Tensor],
    *receivers: Receiver,
    dtype: TensorDtype = TensorDtype.BFLOAT16,
) -> tuple[AgentPublisher, list[Replica]]:
    replicas = [Replica(r.address, r) for r in receivers]  # type: ignore[arg-type]
    return AgentPublisher(IDENTITY, 1, lambda: tensors, dtype, replicas, timeout=5), replicas


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
