"""Pushing weights over a real connection: in chunks inside tensors, going on after a break."""

from __future__ import annotations

import asyncio
import mmap
import random
from collections.abc import Mapping
from typing import Any

import grpc
import pytest
from tests.integration.clients.receiver import Receiver, fails
from tests.integration.clients.servers import QUICK, serving, within

from antiphon.clients.digest import tensor_checksum, weights_digest
from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.generation import GenerationClient
from antiphon.clients.push import CHUNK_BYTES, push_messages
from antiphon.clients.types import (
    FieldError,
    LoadedWeights,
    PushHeader,
    PushKind,
    PushResult,
    PushState,
    TensorDtype,
    TensorSpec,
)
from antiphon.v1 import generation_pb2 as pb

MIB = 1 << 20
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def header_of(tensors: Mapping[str, bytes], version: int = 3) -> PushHeader:
    specs = tuple(
        TensorSpec(name, TensorDtype.BFLOAT16, (len(data) // 2,), tensor_checksum(data))
        for name, data in sorted(tensors.items())
    )
    return PushHeader("r", 1, 0, version, weights_digest(specs), PushKind.FULL, specs)


# Sizes around the chunk size, an empty tensor, and one that one message could not hold.
TENSORS = {
    "a": random.Random(1).randbytes(8 * MIB),
    "b": b"",
    "c": random.Random(2).randbytes(MIB),
    "d": random.Random(3).randbytes(MIB + 2),
    "e": b"xy",
}
DATA = list(TENSORS.values())
HEADER = header_of(TENSORS)
CHUNKS = 8 + 0 + 1 + 2 + 1


def read(index: int) -> memoryview:
    return memoryview(DATA[index])


async def push(
    client: GenerationClient, header: PushHeader = HEADER, timeout: float = 20
) -> PushResult:
    result: PushResult = await within(client.push_weights(header, read, timeout=timeout), 60)
    return result


async def test_a_tensor_larger_than_a_message_arrives_in_chunks(address: str) -> None:
    """S1: a server with gRPC's default limit of 4 MiB takes a tensor of 8 MB."""
    receiver = Receiver()
    async with serving(receiver.register, address) as target, GenerationClient(target) as client:
        result = await push(client)
    assert receiver.applied == DATA
    assert len(receiver.chunks[0]) == CHUNKS
    assert receiver.largest_message < 2 * MIB
    assert (result.weights_version, result.digest) == (3, HEADER.digest)
    assert receiver.status_calls == 0


async def test_a_tensor_of_3_gb_is_cut_at_offsets_beyond_32_bits() -> None:
    """S1: no message near the 2 GiB limit of protobuf, no offset that overflows."""
    size = 3 * 1024 * MIB
    spec = TensorSpec("big", TensorDtype.BFLOAT16, (size // 2,), b"c" * 16)
    header = PushHeader("r", 1, 0, 1, b"d" * 32, PushKind.FULL, (spec,))
    end = 0
    # Never touched pages of an anonymous mapping cost no memory.
    with mmap.mmap(-1, size) as zeros, memoryview(zeros) as view:
        messages = [m async for m in push_messages(header, lambda _: view, [size - 5 * MIB - 7])]
        for message in messages[1:]:
            chunk = pb.PushWeightsRequest.FromString(message).chunk
            assert chunk.offset in (end, size - 5 * MIB - 7)
            assert len(message) < CHUNK_BYTES + 100
            end = chunk.offset + len(chunk.data)
    assert len(messages) == 1 + 6
    assert end == size > 2**31


@pytest.mark.parametrize("broken_at", [0, 1, 5, 8, CHUNKS - 1])
async def test_a_broken_push_goes_on_where_it_stopped(broken_at: int, address: str) -> None:
    """S2: nothing that arrived is sent again, and what is applied is whole."""
    receiver = Receiver()
    receiver.before_chunk[broken_at] = fails(UNAVAILABLE)
    async with (
        serving(receiver.register, address) as target,
        GenerationClient(target, retry=QUICK) as client,
    ):
        await push(client)
    assert receiver.applied == DATA
    assert [len(chunks) for chunks in receiver.chunks] == [broken_at, CHUNKS - broken_at]


async def test_a_push_that_breaks_again_and_again_but_advances_is_finished() -> None:
    """S2: attempts count what brought nothing new."""
    receiver = Receiver()
    receiver.before_chunk = {count: fails(UNAVAILABLE) for count in range(1, 16, 2)}
    async with (
        serving(receiver.register) as target,
        GenerationClient(target, retry=QUICK) as client,
    ):
        await push(client)
    assert receiver.applied == DATA
    assert len(receiver.chunks) == 9 > QUICK.attempts


async def test_a_push_that_stands_still_ends_in_the_root_error() -> None:
    """S2: the old weights stay, and the sender is told why."""
    receiver = Receiver()
    receiver.before_chunk = {count: fails(UNAVAILABLE, "disk full") for count in range(9)}
    async with (
        serving(receiver.register) as target,
        GenerationClient(target, retry=QUICK) as client,
    ):
        with pytest.raises(CallError, match="disk full") as error:
            await push(client)
    assert error.value.attempts == QUICK.attempts
    assert receiver.loaded == LoadedWeights()


async def test_a_damaged_chunk_is_sent_again(address: str) -> None:
    """S2: nothing was applied; what arrived before the damage is kept."""
    receiver = Receiver()
    receiver.damage_chunk = 4
    async with (
        serving(receiver.register, address) as target,
        GenerationClient(target, retry=QUICK) as client,
    ):
        await push(client)
    assert receiver.applied == DATA
    assert [len(chunks) for chunks in receiver.chunks] == [5, CHUNKS - 4]


async def test_data_loss_for_another_reason_is_final() -> None:
    """S2: only a checksum says that sending again helps."""
    receiver = Receiver()
    receiver.before_chunk[0] = fails(grpc.StatusCode.DATA_LOSS, "disk broken")
    async with serving(receiver.register) as target, GenerationClient(target) as client:
        with pytest.raises(CallError, match="disk broken"):
            await push(client)
    assert len(receiver.chunks) == 1


@pytest.mark.parametrize(
    "reason",
    ["PUSH_BASE_MISMATCH", "INCARNATION_SUPERSEDED", "RUN_LEASE_HELD", "PUSH_VERSION_CONFLICT"],
)
async def test_a_refused_push_is_told_at_once_with_its_reason(reason: str, address: str) -> None:
    """S2, S7: what to do next is the sender's decision, so it is not retried away."""
    receiver = Receiver()
    receiver.before_chunk[2] = fails(grpc.StatusCode.FAILED_PRECONDITION, "no", reason)
    async with serving(receiver.register, address) as target, GenerationClient(target) as client:
        with pytest.raises(CallError) as error:
            await push(client)
    assert error.value.reason == reason
    assert error.value.attempts == 1
    assert len(receiver.chunks) == 1


async def test_an_applied_push_whose_answer_was_lost_is_not_sent_again(address: str) -> None:
    """S6: pushes are idempotent."""
    receiver = Receiver()
    receiver.before_answer.append(fails(UNAVAILABLE))
    async with (
        serving(receiver.register, address) as target,
        GenerationClient(target, retry=QUICK) as client,
    ):
        result = await push(client)
    assert [len(chunks) for chunks in receiver.chunks] == [CHUNKS, 0]
    assert result.weights_version == 3


async def test_a_push_that_is_applied_already_is_answered_without_reading_it(address: str) -> None:
    """S6: the service answers while chunks are still being written."""
    receiver = Receiver()
    async with serving(receiver.register, address) as target, GenerationClient(target) as client:
        await push(client)
        assert await push(client) == PushResult(3, HEADER.digest, "i", "b", 0.0)
    assert receiver.chunks[1] == []


async def test_a_deadline_shorter_than_the_apply_does_not_fail_the_push(address: str) -> None:
    """S6: the retry meets an apply in progress, sends nothing twice, and is answered when done."""
    applying = asyncio.Event()

    async def outlasts_the_caller(receiver: Receiver, context: Any) -> None:
        receiver.state = PushState.APPLYING
        cancelled = asyncio.Event()
        context.add_done_callback(lambda _: cancelled.set())
        try:
            await cancelled.wait()
        finally:
            applying.set()

    small = header_of({"e": b"xy"})
    receiver = Receiver()
    receiver.before_apply.append(outlasts_the_caller)
    async with (
        serving(receiver.register, address) as target,
        GenerationClient(target, retry=QUICK) as client,
    ):
        result = await within(client.push_weights(small, lambda _: memoryview(b"xy"), timeout=1))
    assert applying.is_set()
    assert [len(chunks) for chunks in receiver.chunks] == [1, 0]
    assert result.digest == small.digest


async def test_a_service_that_never_reads_ends_in_an_error(address: str) -> None:
    """S5: writes that flow control holds up end with the deadline too."""

    async def hangs(receiver: Receiver, context: Any) -> None:
        await asyncio.Event().wait()

    receiver = Receiver()
    receiver.before_chunk = dict.fromkeys(range(5), hangs)
    async with (
        serving(receiver.register, address) as target,
        GenerationClient(target, retry=QUICK) as client,
    ):
        with pytest.raises(CallError, match="DEADLINE_EXCEEDED"):
            await push(client, timeout=0.3)
    assert receiver.loaded == LoadedWeights()


async def test_an_answer_about_other_weights_is_an_error() -> None:
    """S2: the version is what has been applied, never what was asked for."""

    async def applies_something_else(receiver: Receiver, context: Any) -> None:
        receiver.loaded = LoadedWeights("r", 1, 2, b"o" * 32)

    receiver = Receiver()
    receiver.before_answer.append(applies_something_else)
    async with serving(receiver.register) as target, GenerationClient(target) as client:
        with pytest.raises(ContractError, match="applied version 2"):
            await push(client)


async def test_a_receiver_that_restarted_gets_everything(address: str) -> None:
    """S2, S3: what was staged before the restart is gone."""

    async def forgets(receiver: Receiver, context: Any) -> None:
        receiver.header, receiver.staged = None, []
        await fails(UNAVAILABLE)(receiver, context)

    receiver = Receiver()
    receiver.before_chunk[6] = forgets
    async with (
        serving(receiver.register, address) as target,
        GenerationClient(target, retry=QUICK) as client,
    ):
        await push(client)
    assert receiver.applied == DATA
    assert [len(chunks) for chunks in receiver.chunks] == [6, CHUNKS]


async def test_tensors_that_cannot_be_read_end_the_push_with_that_error(address: str) -> None:
    """S2: the root error, not that the call was cancelled because of it; nothing is applied."""

    def breaks(index: int) -> memoryview:
        if index == 2:
            raise OSError("the disk is gone")
        return read(index)

    receiver = Receiver()
    async with serving(receiver.register, address) as target, GenerationClient(target) as client:
        with pytest.raises(OSError, match="the disk is gone"):
            await within(client.push_weights(HEADER, breaks, timeout=20))
        assert receiver.loaded == LoadedWeights()


async def test_a_tensor_of_another_size_than_announced_is_named() -> None:
    receiver = Receiver()
    async with serving(receiver.register) as target, GenerationClient(target) as client:
        with pytest.raises(FieldError, match=f"{MIB} for c of shape"):
            await within(client.push_weights(HEADER, lambda _: read(0), timeout=20))
        assert receiver.loaded == LoadedWeights()
