"""Versions count what replicas applied; every replica gets the same bytes on its own channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
import torch

from antiphon.clients.digest import tensor_checksum, weights_digest
from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.types import (
    FieldError,
    LoadedWeights,
    PushHeader,
    PushKind,
    PushResult,
    TensorDtype,
)
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import (
    Replica,
    Replicas,
    RunIdentity,
    RunSupersededError,
    ServiceTakenError,
)
from antiphon.learner.weights.wire_weights import OwnWeights
from antiphon.services.common.changes import decode_change, patterns
from antiphon.services.common.tensors import tensor_specs, to_bytes

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
) -> tuple[AgentPublisher, Replicas]:
    replicas = Replicas(Replica(r.address, r) for r in receivers)  # type: ignore[arg-type]
    weights = OwnWeights(lambda: tensors, dtype)
    return AgentPublisher(IDENTITY, 1, weights, replicas, timeout=5), replicas


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


@dataclass
class DeltaReceiver(Receiver):
    """Applies what it is pushed: whole tensors, or changes of those that it has."""

    loaded: LoadedWeights = field(default_factory=LoadedWeights)
    tensors: list[bytearray] = field(default_factory=list)
    damages: bool = False

    async def push_weights(
        self,
        header: PushHeader,
        read_tensor: Callable[[int], memoryview],
        *,
        timeout: float,
    ) -> PushResult:
        if self.error is not None:
            raise self.error
        if header.kind is PushKind.DELTA:
            if (header.base_version, header.base_digest) != (
                self.loaded.version,
                self.loaded.digest,
            ):
                raise failure(
                    "PUSH_BASE_MISMATCH",
                    loaded_version=str(self.loaded.version),
                    loaded_digest=self.loaded.digest.hex(),
                )
            if self.damages:
                raise failure("PUSH_CHECKSUM_MISMATCH")
            for index, spec in enumerate(header.tensors):
                change = bytes(read_tensor(index))
                assert len(change) == header.delta_sizes[index]
                held = patterns(self.tensors[index], spec.dtype)
                positions, values = decode_change(change, held)
                held[positions] = values
        else:
            self.tensors = [bytearray(read_tensor(i)) for i in range(len(header.tensors))]
        for spec, data in zip(header.tensors, self.tensors, strict=True):
            assert tensor_checksum(data) == spec.checksum
        assert header.digest == weights_digest(header.tensors)
        self.loaded = LoadedWeights("run-1", 3, header.version, header.digest)
        return await super().push_weights(header, read_tensor, timeout=timeout)

    def restart(self, tensors: dict[str, torch.Tensor]) -> None:
        """Comes back with the weights that it starts from."""
        wire = TensorDtype.BFLOAT16
        self.tensors = [bytearray(to_bytes(tensors[name], wire)) for name in sorted(tensors)]
        self.loaded = LoadedWeights(digest=weights_digest(tensor_specs(tensors, wire)))

    def kinds(self) -> list[tuple[PushKind, int]]:
        return [(header.kind, header.version) for header, _ in self.pushes]


def delta_publisher(
    tensors: dict[str, torch.Tensor],
    *receivers: DeltaReceiver,
    deltas: bool = True,
    dtype: TensorDtype = TensorDtype.BFLOAT16,
) -> tuple[AgentPublisher, Replicas]:
    replicas = Replicas(
        Replica(r.address, r, r.loaded, frozenset(PushKind))  # type: ignore[arg-type]
        for r in receivers
    )
    weights = OwnWeights(lambda: tensors, dtype)
    made = AgentPublisher(IDENTITY, 1, weights, replicas, timeout=5, deltas=deltas)
    return made, replicas


def drawn(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "b": torch.randn(2000, generator=generator).to(torch.bfloat16).float(),
        "a": torch.randn(3, generator=generator).to(torch.bfloat16).float(),
    }


def move(tensors: dict[str, torch.Tensor], offset: int = 0) -> None:
    tensors["b"][offset::100] += 1.0
    tensors["b"].copy_(tensors["b"].to(torch.bfloat16).float())


FULL, DELTA = PushKind.FULL, PushKind.DELTA


async def test_after_the_first_push_what_changed_is_sent_to_all_from_one_encoding() -> None:
    one, two = DeltaReceiver("a:1"), DeltaReceiver("a:2")
    tensors = drawn()
    made, replicas = delta_publisher(tensors, one, two)
    first = await made.publish()
    move(tensors)
    second = await made.publish()
    assert one.kinds() == two.kinds() == [(FULL, 1), (DELTA, 2)]
    assert one.pushes[1] == two.pushes[1]
    assert one.tensors == [bytearray(to_bytes(tensors[n], TensorDtype.BFLOAT16)) for n in "ab"]
    header, sent = one.pushes[1]
    assert sent["a"] == b""
    assert (header.base_version, header.base_digest) == (1, one.pushes[0][0].digest)
    assert (first.kind, second.kind) == (FULL, DELTA)
    assert second.nbytes == 2 * sum(header.delta_sizes) < first.nbytes / 10
    assert replicas[0].acknowledged == replicas[1].acknowledged == one.loaded


async def test_the_first_push_to_a_service_with_these_weights_is_an_empty_delta() -> None:
    tensors, receiver = drawn(), DeltaReceiver()
    receiver.restart(tensors)
    made, _ = delta_publisher(tensors, receiver)
    published = await made.publish()
    assert receiver.kinds() == [(DELTA, 1)]
    assert (published.nbytes, published.kind) == (0, DELTA)
    assert receiver.loaded.version == 1
    move(tensors)
    await made.publish()
    assert receiver.kinds() == [(DELTA, 1), (DELTA, 2)]


async def test_a_restarted_replica_gets_all_where_the_others_get_what_changed() -> None:
    """S3: its refusal says what it has; nothing is sent on trust."""
    steady, restarted = DeltaReceiver("a:1"), DeltaReceiver("a:2")
    tensors = drawn()
    made, _ = delta_publisher(tensors, steady, restarted)
    await made.publish()
    restarted.restart(drawn(seed=9))
    move(tensors)
    published = await made.publish()
    assert steady.kinds() == [(FULL, 1), (DELTA, 2)]
    assert restarted.kinds() == [(FULL, 1), (FULL, 2)]
    assert published.kind is FULL
    assert restarted.tensors == steady.tensors


async def test_a_replica_that_restarted_from_known_weights_is_brought_on_from_them() -> None:
    """S3: the weights of version 1, as version 0: two steps lead to what is published."""
    tensors, receiver = drawn(), DeltaReceiver()
    made, replicas = delta_publisher(tensors, receiver)
    await made.publish()
    started = {name: tensor.clone() for name, tensor in tensors.items()}
    for offset in (0, 1):
        move(tensors, offset)
        await made.publish()
    receiver.restart(started)
    await made.push_again(replicas[0])
    assert receiver.kinds()[-2:] == [(DELTA, 2), (DELTA, 3)]
    assert receiver.loaded == replicas[0].acknowledged
    assert receiver.pushes[-2][0].base_version == 0


async def test_a_replica_that_missed_versions_gets_each_of_them_or_all() -> None:
    gone = CallError(grpc.StatusCode.UNAVAILABLE, "gone", address="a:2", rpc="PushWeights")
    alive, missing = DeltaReceiver("a:1"), DeltaReceiver("a:2")
    tensors = drawn()
    made, replicas = delta_publisher(tensors, alive, missing)
    await made.publish()
    missing.error = gone
    for offset in (0, 1):
        move(tensors, offset)
        await made.publish()
    missing.error = None
    assert missing.loaded.version == 1
    move(tensors, 2)
    await made.publish()
    async with asyncio.timeout(5):
        while not replicas[1].reachable:
            await asyncio.sleep(0)
    assert missing.kinds() == [(FULL, 1), (DELTA, 2), (DELTA, 3), (DELTA, 4)]
    assert missing.tensors == alive.tensors
    await made.close()


async def test_where_nearly_all_changed_all_is_sent() -> None:
    tensors, receiver = drawn(), DeltaReceiver()
    made, _ = delta_publisher(tensors, receiver)
    await made.publish()
    tensors["b"].mul_(3)
    await made.publish()
    assert receiver.kinds() == [(FULL, 1), (FULL, 2)]


async def test_a_delta_that_does_not_give_the_weights_is_followed_by_all() -> None:
    """S2: proved by the checksum of every tensor, and never trusted twice."""
    tensors, receiver = drawn(), DeltaReceiver(damages=True)
    made, _ = delta_publisher(tensors, receiver)
    await made.publish()
    move(tensors)
    published = await made.publish()
    assert receiver.kinds() == [(FULL, 1), (FULL, 2)]
    assert published.kind is FULL


async def test_a_replica_that_refuses_every_base_gets_all_after_the_second_refusal() -> None:
    class Forgetful(DeltaReceiver):
        refused = 0

        async def push_weights(self, header: PushHeader, *args: Any, **options: Any) -> PushResult:
            if header.kind is DELTA:
                self.refused += 1
                raise failure(
                    "PUSH_BASE_MISMATCH",
                    loaded_version="7",
                    loaded_digest=header.base_digest.hex(),
                )
            return await super().push_weights(header, *args, **options)

    tensors, receiver = drawn(), Forgetful()
    made, _ = delta_publisher(tensors, receiver)
    await made.publish()
    move(tensors)
    await made.publish()
    assert receiver.refused == 2
    assert receiver.kinds() == [(FULL, 1), (FULL, 2)]


async def test_without_deltas_all_is_sent() -> None:
    tensors, receiver = drawn(), DeltaReceiver()
    made, _ = delta_publisher(tensors, receiver, deltas=False)
    await made.publish()
    move(tensors)
    await made.publish()
    assert receiver.kinds() == [(FULL, 1), (FULL, 2)]


async def test_deltas_are_not_tried_where_the_engine_holds_fewer_bits_than_the_wire() -> None:
    """It says in which number formats it takes them; the others get them all the same."""
    tensors, coarse, fine = drawn(), DeltaReceiver("a:1"), DeltaReceiver("a:2")
    made, replicas = delta_publisher(tensors, coarse, fine, dtype=TensorDtype.FLOAT32)
    replicas[0].delta_dtypes = frozenset({TensorDtype.BFLOAT16})
    replicas[1].delta_dtypes = frozenset(TensorDtype)
    for _ in range(3):
        await made.publish()
        move(tensors)
    assert coarse.kinds() == [(FULL, 1), (FULL, 2), (FULL, 3)]
    assert fine.kinds() == [(FULL, 1), (DELTA, 2), (DELTA, 3)]
