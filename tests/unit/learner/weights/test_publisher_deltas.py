"""After the first push what changed is pushed, and all of it to whom lacks the base."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import torch
from tests.unit.learner.weights.pushed import IDENTITY, Receiver, failure

from antiphon.clients.digest import tensor_checksum, weights_digest
from antiphon.clients.errors import CallError
from antiphon.clients.types import (
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
)
from antiphon.learner.weights.wire_weights import OwnWeights
from antiphon.services.common.changes import decode_change, patterns
from antiphon.services.common.tensors import tensor_specs, to_bytes


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
