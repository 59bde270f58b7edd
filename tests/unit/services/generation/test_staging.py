"""A push's bytes as they arrive."""

from __future__ import annotations

import grpc
import pytest
import xxhash

from antiphon.clients.digest import weights_digest
from antiphon.clients.types import (
    FieldError,
    PushHeader,
    PushKind,
    TensorDtype,
    TensorSpec,
    WeightsChunk,
)
from antiphon.services.common.errors import ServiceError
from antiphon.services.common.memory import mapped
from antiphon.services.generation.staging import Staging, TensorBuffer, new_bytes

FIRST, SECOND = bytes(range(16)), bytes(range(100, 108))


def spec(name: str, data: bytes) -> TensorSpec:
    return TensorSpec(name, TensorDtype.FLOAT32, (len(data) // 4,), xxhash.xxh3_128_digest(data))


def staging() -> Staging:
    specs = (spec("a", FIRST), spec("b", SECOND))
    return Staging(PushHeader("run", 1, 0, 1, weights_digest(specs), PushKind.FULL, specs))


def chunk(index: int, offset: int, data: bytes, checksum: int | None = None) -> WeightsChunk:
    own = xxhash.xxh3_64_intdigest(data)
    return WeightsChunk(index, offset, data, own if checksum is None else checksum)


def test_chunks_inside_tensors_add_up_to_the_tensors() -> None:
    stage = staging()
    assert [stage.add(chunk(0, i, FIRST[i : i + 6])) for i in (0, 6, 12)] == [6, 6, 4]
    assert stage.received_bytes == (16, 0)
    assert not stage.complete
    assert stage.add(chunk(1, 0, SECOND)) == 8
    assert stage.complete
    assert [(t.spec.name, bytes(t.data)) for t in stage.tensors()] == [("a", FIRST), ("b", SECOND)]


def test_tensors_may_come_in_any_order_and_what_is_repeated_is_skipped() -> None:
    stage = staging()
    stage.add(chunk(1, 0, SECOND))
    stage.add(chunk(0, 0, FIRST[:10]))
    assert stage.add(chunk(0, 4, FIRST[4:8])) == 0
    assert stage.add(chunk(0, 8, FIRST[8:])) == 6
    assert stage.complete
    assert bytes(stage.tensors()[0].data) == FIRST


def test_a_corrupted_chunk_is_named_and_leaves_what_came_before() -> None:
    """S2: nothing of the chunk is kept; the push can go on from where it was."""
    stage = staging()
    stage.add(chunk(0, 0, FIRST[:8]))
    with pytest.raises(ServiceError, match="chunk at byte 8 of 'a'") as caught:
        stage.add(chunk(0, 8, FIRST[8:], checksum=1))
    assert caught.value.code is grpc.StatusCode.DATA_LOSS
    assert caught.value.reason == "PUSH_CHECKSUM_MISMATCH"
    assert caught.value.metadata == {"tensor": "a"}
    assert stage.received_bytes == (8, 0)
    stage.add(chunk(0, 8, FIRST[8:]))
    stage.add(chunk(1, 0, SECOND))
    assert stage.complete


def test_a_tensor_that_does_not_match_its_checksum_starts_again() -> None:
    """S2: sound chunks of wrong bytes are found when the tensor is whole."""
    stage = staging()
    stage.add(chunk(1, 0, SECOND))
    stage.add(chunk(0, 0, FIRST[:8]))
    with pytest.raises(ServiceError, match="the whole tensor of 'a'"):
        stage.add(chunk(0, 8, bytes(8)))
    assert stage.received_bytes == (0, 8)
    stage.add(chunk(0, 0, FIRST))
    assert stage.complete
    assert bytes(stage.tensors()[0].data) == FIRST


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (chunk(2, 0, b"abcd"), "chunk.tensor_index"),
        (chunk(0, 4, b"abcd"), "chunk.offset"),
        (chunk(1, 0, bytes(12)), "chunk.data"),
    ],
)
def test_chunks_that_do_not_fit_are_refused_by_field(bad: WeightsChunk, field: str) -> None:
    stage = staging()
    with pytest.raises(FieldError) as caught:
        stage.add(bad)
    assert caught.value.field == field
    assert stage.received_bytes == (0, 0)


def test_a_tensor_of_three_gigabytes_is_taken_chunk_by_chunk_past_every_32_bit_limit() -> None:
    """S1: offsets and sizes are 64 bit, and memory is touched only where bytes arrive."""
    size, step = 3 << 30, 1 << 20
    for received in (0, (2 << 30) - step, 2 << 30, size - step):
        part = WeightsChunk(0, received, b"x" * 64, 0)
        assert new_bytes(size, received, part) == 0
    overlapping = WeightsChunk(0, (3 << 30) - 100, b"x" * 100, 0)
    assert new_bytes(size, size - 40, overlapping) == 60
    with pytest.raises(FieldError, match=r"bytes up to 3221225473, wanted at most 3221225472"):
        new_bytes(size, size - 63, WeightsChunk(0, size - 63, b"x" * 64, 0))

    shape = (3 << 10, 1 << 18)
    spec = TensorSpec("large", TensorDtype.FLOAT32, shape, bytes(16))
    buffer = TensorBuffer(spec, *mapped([size]))
    buffer.received = size - 2 * step
    last = b"\x07" * step
    assert buffer.add(chunk(0, size - 2 * step, last)) == step
    assert bytes(buffer.data[size - 2 * step : size - step]) == last
    assert not buffer.complete
    with pytest.raises(ServiceError, match="the whole tensor of 'large'"):
        buffer.add(chunk(0, size - step, last))


def test_tensors_without_elements_need_no_chunks_but_the_right_checksum() -> None:
    empty = TensorSpec("e", TensorDtype.FLOAT32, (0, 4), xxhash.xxh3_128_digest(b""))
    wrong = TensorSpec("e", TensorDtype.FLOAT32, (0, 4), bytes(16))
    assert Staging(PushHeader("r", 1, 0, 1, b"", PushKind.FULL, (empty,))).complete
    with pytest.raises(FieldError, match="no elements"):
        Staging(PushHeader("r", 1, 0, 1, b"", PushKind.FULL, (wrong,)))
