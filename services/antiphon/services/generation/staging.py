"""The bytes of a push while they arrive: checked chunk by chunk, kept until applied or replaced."""

from __future__ import annotations

import grpc
import xxhash

from antiphon.clients.digest import chunk_checksum
from antiphon.clients.types import FieldError, PushHeader, PushKind, TensorSpec, WeightsChunk
from antiphon.services.common.errors import ServiceError
from antiphon.services.common.memory import mapped
from antiphon.services.generation.engine import PushedTensor


def new_bytes(nbytes: int, received: int, chunk: WeightsChunk) -> int:
    """From which byte of a chunk on it brings something new; its length where nothing.

    Args:
        nbytes: Size of the tensor.
        received: How much of it has arrived, without gaps from its start.
        chunk: A chunk of it. What it repeats is skipped.

    Raises:
        FieldError: The chunk leaves a gap or goes past the tensor's end.
    """
    end = chunk.offset + len(chunk.data)
    if chunk.offset > received:
        raise FieldError(
            "chunk.offset", chunk.offset, f"at most {received}, the bytes that have arrived"
        )
    if end > nbytes:
        raise FieldError(
            "chunk.data", f"bytes up to {end}", f"at most {nbytes}, the size of the tensor"
        )
    return min(received - chunk.offset, len(chunk.data))


class TensorBuffer:
    """One tensor as it arrives, or its encoded change.

    Args:
        spec: The tensor.
        data: Room for its bytes.
        whole: Whether they are the tensor itself, which is then held against its checksum.
    """

    def __init__(self, spec: TensorSpec, data: memoryview, *, whole: bool = True) -> None:
        self.spec = spec
        self.data = data
        self.received = 0
        self._whole = whole
        self._hash = xxhash.xxh3_128()

    @property
    def complete(self) -> bool:
        """Whether all of it is here, and matches its checksum where it is the tensor itself."""
        return self.received == self.data.nbytes

    def add(self, chunk: WeightsChunk) -> int:
        """Adds a chunk and returns how many of its bytes were new.

        Raises:
            FieldError: The chunk does not fit.
            ServiceError: DATA_LOSS with PUSH_CHECKSUM_MISMATCH: the chunk, or the tensor that it
                completes, does not match its checksum. Of the tensor nothing is kept then.
        """
        start = new_bytes(self.data.nbytes, self.received, chunk)
        if chunk_checksum(chunk.data) != chunk.checksum:
            raise mismatch(f"the chunk at byte {chunk.offset}", self.spec)
        fresh = memoryview(chunk.data)[start:]
        self.data[self.received : self.received + len(fresh)] = fresh
        self.received += len(fresh)
        if self._whole:
            self._hash.update(fresh)
            if self.complete and self._hash.digest() != self.spec.checksum:
                self.received, self._hash = 0, xxhash.xxh3_128()
                raise mismatch("the whole tensor", self.spec)
        return len(fresh)


def mismatch(what: str, spec: TensorSpec) -> ServiceError:
    """What to answer where bytes of a push do not match a checksum."""
    return ServiceError(
        grpc.StatusCode.DATA_LOSS,
        f"{what} of {spec.name!r} does not match its checksum; nothing was applied, ask "
        "GetPushStatus and send again from where it says",
        reason="PUSH_CHECKSUM_MISMATCH",
        metadata={"tensor": spec.name},
    )


class Staging:
    """What has arrived of one push. Takes memory as bytes arrive, at most what the header says.

    Args:
        header: Checked against the model.
    """

    def __init__(self, header: PushHeader) -> None:
        self.header = header
        whole = header.kind is not PushKind.DELTA
        self._buffers = [
            TensorBuffer(spec, room, whole=whole)
            for spec, room in zip(header.tensors, mapped(header.sizes), strict=True)
        ]
        if not whole:
            return
        for index, buffer in enumerate(self._buffers):
            if buffer.complete and buffer.spec.checksum != xxhash.xxh3_128_digest(b""):
                raise FieldError(
                    f"header.tensors[{index}].checksum",
                    buffer.spec.checksum.hex(),
                    "the checksum of no bytes: the tensor has no elements",
                )

    @property
    def received_bytes(self) -> tuple[int, ...]:
        """Bytes that have arrived of each tensor, without gaps from its start."""
        return tuple(buffer.received for buffer in self._buffers)

    @property
    def complete(self) -> bool:
        """Whether all that the push brings is here."""
        return all(buffer.complete for buffer in self._buffers)

    def add(self, chunk: WeightsChunk) -> int:
        """Adds a chunk and returns how many of its bytes were new; errors as `TensorBuffer.add`."""
        if chunk.tensor_index >= len(self._buffers):
            raise FieldError(
                "chunk.tensor_index", chunk.tensor_index, f"below {len(self._buffers)}"
            )
        return self._buffers[chunk.tensor_index].add(chunk)

    def tensors(self) -> list[PushedTensor]:
        """The tensors of a complete push, of a DELTA their encoded changes."""
        return [PushedTensor(buffer.spec, buffer.data) for buffer in self._buffers]
