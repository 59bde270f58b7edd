"""Chunks that are written and read without protobuf's messages are protobuf's all the same."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError

from antiphon.clients.types import WeightsChunk
from antiphon.clients.wire import chunk_to_bytes, push_request_from_bytes, push_request_from_proto
from antiphon.v1 import generation_pb2 as pb

CHUNKS = [
    WeightsChunk(0, 0, b"x", 0),
    WeightsChunk(3, 2**33, b"\x00\xff" * 100, 2**64 - 1),
    WeightsChunk(2**32 - 1, 2**64 - 1, random.Random(0).randbytes(70_000), 1),
    WeightsChunk(1, 127, bytes(128), 2**63),
]


def plain(chunk: WeightsChunk) -> pb.WeightsChunk:
    return pb.WeightsChunk(
        tensor_index=chunk.tensor_index,
        offset=chunk.offset,
        data=bytes(chunk.data),
        checksum=chunk.checksum,
    )


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_chunk_is_written_as_protobuf_reads_it(chunk: WeightsChunk) -> None:
    message = pb.PushWeightsRequest.FromString(chunk_to_bytes(chunk))
    assert message == pb.PushWeightsRequest(chunk=plain(chunk))
    assert push_request_from_proto(message) == chunk


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_chunk_is_read_in_any_order_of_fields(chunk: WeightsChunk) -> None:
    """Protobuf writes fields by number, this client the data last."""
    written = pb.PushWeightsRequest(chunk=plain(chunk)).SerializeToString()
    for message in (written, chunk_to_bytes(chunk)):
        read = push_request_from_bytes(message)
        assert read == chunk
        assert isinstance(read, WeightsChunk)
        assert isinstance(read.data, memoryview)  # not copied


def test_whatever_is_no_plain_chunk_is_read_by_protobuf() -> None:
    header = pb.PushWeightsRequest(header=pb.PushHeader(run_id="r", version=3))
    twice = pb.PushWeightsRequest(chunk=plain(CHUNKS[0])).SerializeToString() * 2
    empty = pb.PushWeightsRequest(chunk=pb.WeightsChunk(tensor_index=4))
    # Field 9 of a chunk is unknown; an index of 33 bits loses the last one.
    inner = pb.WeightsChunk(data=b"y").SerializeToString()
    unknown = b"\x12" + bytes((len(inner) + 2,)) + inner + b"\x48\x01"
    long_index = inner + b"\x08\xff\xff\xff\xff\x1f"
    long = b"\x12" + bytes((len(long_index),)) + long_index
    for message in (header.SerializeToString(), twice, empty.SerializeToString(), unknown, long):
        assert push_request_from_bytes(message) == pb.PushWeightsRequest.FromString(message)


def test_damaged_messages_are_read_as_protobuf_reads_them() -> None:
    """S17: no bytes do more than protobuf's own reader would."""
    rng = random.Random(1)
    sound = [chunk_to_bytes(WeightsChunk(5, 300, b"abcdef", 7)), b"", b"\x12", b"\x12\x80"]
    for _ in range(3000):
        message = bytearray(rng.choice(sound))
        for _ in range(rng.randrange(4)):
            if message:
                message[rng.randrange(len(message))] = rng.randrange(256)
        damaged = bytes(
            message[: rng.randrange(len(message) + 1)] if rng.random() < 0.3 else message
        )
        try:
            wanted = pb.PushWeightsRequest.FromString(damaged)
        except DecodeError:
            with pytest.raises(DecodeError):
                push_request_from_bytes(damaged)
            continue
        read = push_request_from_bytes(damaged)
        if isinstance(read, WeightsChunk):
            assert read == push_request_from_proto(wanted)
        else:
            assert read == wanted
