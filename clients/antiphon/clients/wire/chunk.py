"""Chunks of weights as bytes on the wire, without the copies that protobuf's own messages take.

A push is hundreds of megabytes: here a chunk's data is copied once when it is sent and not at all
when it is read. The bytes are those of `PushWeightsRequest` all the same.
"""

from __future__ import annotations

from antiphon.clients.types import WeightsChunk
from antiphon.v1 import generation_pb2 as pb

# What precedes each field on the wire: number << 3 | wire type.
_CHUNK_TAG = pb.PushWeightsRequest.CHUNK_FIELD_NUMBER << 3 | 2
_INDEX_TAG = pb.WeightsChunk.TENSOR_INDEX_FIELD_NUMBER << 3
_OFFSET_TAG = pb.WeightsChunk.OFFSET_FIELD_NUMBER << 3
_DATA_TAG = pb.WeightsChunk.DATA_FIELD_NUMBER << 3 | 2
_CHECKSUM_TAG = pb.WeightsChunk.CHECKSUM_FIELD_NUMBER << 3 | 1


def chunk_to_bytes(chunk: WeightsChunk) -> bytes:
    """A part of one tensor as a serialised `PushWeightsRequest`; its data is copied once.

    Protobuf would copy it into a message of its own first.
    """
    data = chunk.data
    fields = pb.WeightsChunk(
        tensor_index=chunk.tensor_index, offset=chunk.offset, checksum=chunk.checksum
    ).SerializeToString()
    fields += bytes((_DATA_TAG,)) + _varint(len(data))
    return b"".join((bytes((_CHUNK_TAG,)), _varint(len(fields) + len(data)), fields, data))


def push_request_from_bytes(message: bytes) -> pb.PushWeightsRequest | WeightsChunk:
    """One serialised message of a push: a chunk, whose data is not copied, or what it is else.

    Raises:
        google.protobuf.message.DecodeError: The bytes are no such message.
    """
    return _chunk_from_bytes(message) or pb.PushWeightsRequest.FromString(message)


def _chunk_from_bytes(message: bytes) -> WeightsChunk | None:
    """The chunk that is all of a message; None where that is for protobuf to say."""
    index = offset = checksum = 0
    data = memoryview(b"")
    try:
        if message[0] != _CHUNK_TAG:
            return None
        size, at = _read_varint(message, 1)
        if at + size != len(message):
            return None
        while at < len(message):
            tag, at = message[at], at + 1
            if tag == _INDEX_TAG:
                index, at = _read_varint(message, at)
            elif tag == _OFFSET_TAG:
                offset, at = _read_varint(message, at)
            elif tag == _CHECKSUM_TAG:
                checksum, at = int.from_bytes(message[at : at + 8], "little"), at + 8
            elif tag == _DATA_TAG:
                size, at = _read_varint(message, at)
                data, at = memoryview(message)[at : at + size], at + size
            else:
                return None
    except IndexError:
        return None
    if at != len(message) or not data or index >= 1 << 32 or offset >= 1 << 64:
        return None
    return WeightsChunk(index, offset, data, checksum)


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of at most ten bytes, and where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        byte, at = data[at], at + 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise IndexError(at)
