"""Versions count what replicas applied; every replica gets the same bytes on its own channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
import torch

from antiphon.clients.digest import weights_digest
from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.types import FieldError, PushHeader, PushKind, PushResult, TensorDtype
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import (
    Replica,
    RunIdentity,
    RunSupersededError,
    ServiceTakenError,
)
from antiphon.services.common.tensors import tensor_specs

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


LAYER = "model.q"
ADAPTED = {
    "model.norm": torch.ones(2),
    f"{LAYER}.lora_A.weight": torch.ones(1, 2),
    f"{LAYER}.lora_B.weight": torch.ones(2, 1),
    f"{LAYER}.lora_scaling": torch.tensor(1.1),
    f"{LAYER}.weight": torch.ones(2, 2),
}
"""In order of name, as it goes over the wire."""


class Baseless(Receiver):
    """Refuses adapters until a whole push has come."""

    async def push_weights(self, header: PushHeader, *args: Any, **options: Any) -> PushResult:
        if header.kind is PushKind.ADAPTER and not self.pushes:
            raise failure("PUSH_BASE_MISMATCH")
        return await super().push_weights(header, *args, **options)


async def test_of_an_adapted_model_the_adapter_alone_is_sent() -> None:
    """Scalings are float32 whatever the wire; the digest is of base and adapter together."""
    receiver = Receiver()
    made, _ = publisher(ADAPTED, receiver)
    published = await made.publish()
    header, sent = receiver.pushes[0]
    assert header.kind is PushKind.ADAPTER
    assert list(sent) == [
        f"{LAYER}.lora_A.weight",
        f"{LAYER}.lora_B.weight",
        f"{LAYER}.lora_scaling",
    ]
    assert [spec.dtype.value for spec in header.tensors] == ["bfloat16", "bfloat16", "float32"]
    assert sent[f"{LAYER}.lora_scaling"] == bytes.fromhex("cdcc8c3f")
    assert published.nbytes == 4 + 4 + 4
    base = {name: t for name, t in ADAPTED.items() if "lora" not in name}
    assert header.base_digest == weights_digest(tensor_specs(base, TensorDtype.BFLOAT16))
    specs = (*tensor_specs(base, TensorDtype.BFLOAT16), *header.tensors)
    assert header.digest == weights_digest(specs)


async def test_a_replica_without_the_base_gets_all_of_it_once() -> None:
    with_base, without = Receiver("a:1"), Baseless("a:2")
    made, replicas = publisher(ADAPTED, with_base, without)
    first = await made.publish()
    assert [header.kind for header, _ in with_base.pushes] == [PushKind.ADAPTER]
    (whole, sent), *_ = without.pushes
    assert (whole.kind, list(sent)) == (PushKind.FULL, sorted(ADAPTED))
    assert whole.digest == with_base.pushes[0][0].digest
    assert first.nbytes == 12 + (12 + 4 + 8)
    second = await made.publish()
    assert without.pushes[1][0].kind is PushKind.ADAPTER
    assert second.nbytes == 2 * 12
    without.pushes.clear()
    await made.push_again(replicas[1])
    assert without.pushes[0][0].kind is PushKind.FULL
    assert without.pushes[0][0].version == 2


@pytest.mark.parametrize("dtype", list(TensorDtype))
async def test_base_and_adapter_are_of_one_version_though_the_adapter_moves_meanwhile(
    dtype: TensorDtype,
) -> None:
    """The base is asked for after a step has changed the adapter in place."""
    tensors = {name: tensor.clone() for name, tensor in ADAPTED.items()}

    class Moving(Baseless):
        async def push_weights(self, header: PushHeader, *args: Any, **options: Any) -> PushResult:
            if header.kind is PushKind.ADAPTER:
                tensors[f"{LAYER}.lora_A.weight"].add_(1.0)
            return await super().push_weights(header, *args, **options)

    still, moving = Receiver("a:1"), Moving("a:2")
    made, _ = publisher(tensors, still, moving, dtype=dtype)
    await made.publish()
    (alone, sent), (whole, all_sent) = still.pushes[0], moving.pushes[0]
    assert whole.digest == alone.digest
    assert {name: all_sent[name] for name in sent} == sent


async def test_another_refusal_of_an_adapter_travels() -> None:
    made, _ = publisher(ADAPTED, Receiver(error=failure("PUSH_VERSION_CONFLICT")))
    with pytest.raises(CallError, match="PUSH_VERSION_CONFLICT"):
        await made.publish()
