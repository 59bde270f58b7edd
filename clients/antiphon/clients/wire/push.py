"""Weight pushes on the wire (`antiphon/v1/generation.proto`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from antiphon.clients.types import (
    FieldError,
    LoadedWeights,
    PushHeader,
    PushKind,
    PushResult,
    PushState,
    PushStatus,
    StoredChunks,
    TensorDtype,
    TensorSpec,
    WeightsChunk,
)
from antiphon.clients.wire.checks import (
    at,
    enum_from_proto,
    require,
    require_at_least,
    require_id,
    require_text,
)
from antiphon.v1 import generation_pb2 as pb

PUSH_KINDS = {
    pb.PUSH_KIND_FULL: PushKind.FULL,
    pb.PUSH_KIND_DELTA: PushKind.DELTA,
    pb.PUSH_KIND_ADAPTER: PushKind.ADAPTER,
}
PUSH_KIND_NUMBERS = {kind: number for number, kind in PUSH_KINDS.items()}
DTYPES = {
    pb.TENSOR_DTYPE_BFLOAT16: TensorDtype.BFLOAT16,
    pb.TENSOR_DTYPE_FLOAT32: TensorDtype.FLOAT32,
}
DTYPE_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_STATES = {
    pb.PUSH_STATE_UNKNOWN: PushState.UNKNOWN,
    pb.PUSH_STATE_STAGED: PushState.STAGED,
    pb.PUSH_STATE_APPLYING: PushState.APPLYING,
    pb.PUSH_STATE_APPLIED: PushState.APPLIED,
}
_STATE_NUMBERS = {state: number for number, state in _STATES.items()}

CHECKSUM_BYTES = 16
DIGEST_BYTES = 32


def loaded_weights_to_proto(loaded: LoadedWeights) -> pb.LoadedWeights:
    """The weights that a service samples from."""
    return pb.LoadedWeights(
        run_id=loaded.run_id,
        incarnation=loaded.incarnation,
        version=loaded.version,
        digest=loaded.digest,
    )


def loaded_weights_from_proto(message: pb.LoadedWeights) -> LoadedWeights:
    """The weights that a service samples from."""
    return LoadedWeights(message.run_id, message.incarnation, message.version, message.digest)


def tensor_spec_to_proto(spec: TensorSpec) -> pb.TensorSpec:
    """A tensor as it is once a push is applied."""
    return pb.TensorSpec(
        name=spec.name,
        dtype=DTYPE_NUMBERS[spec.dtype],
        shape=spec.shape,
        checksum=spec.checksum,
    )


def tensor_spec_from_proto(message: pb.TensorSpec, field: str = "tensor") -> TensorSpec:
    """A tensor as it is once a push is applied.

    Raises:
        FieldError: For a missing name or dtype, or a checksum that is not 16 bytes.
    """
    require_text(message.name, at(field, "name"))
    require(
        len(message.checksum) == CHECKSUM_BYTES,
        at(field, "checksum"),
        f"{len(message.checksum)} bytes",
        f"{CHECKSUM_BYTES}",
    )
    return TensorSpec(
        name=message.name,
        dtype=enum_from_proto(message.dtype, DTYPES, at(field, "dtype")),
        shape=tuple(message.shape),
        checksum=message.checksum,
    )


def push_header_to_proto(header: PushHeader) -> pb.PushHeader:
    """The opening of a push."""
    return pb.PushHeader(
        run_id=header.run_id,
        incarnation=header.incarnation,
        agent=header.agent,
        base_version=header.base_version,
        base_digest=header.base_digest,
        version=header.version,
        digest=header.digest,
        kind=PUSH_KIND_NUMBERS[header.kind],
        tensors=[tensor_spec_to_proto(spec) for spec in header.tensors],
        delta_sizes=header.delta_sizes,
    )


def push_header_from_proto(message: pb.PushHeader, field: str = "header") -> PushHeader:
    """The opening of a push.

    Raises:
        FieldError: Its numbers are out of range or its tensors are not sorted by distinct names.
    """
    require_id(message.run_id, at(field, "run_id"))
    require_at_least(message.incarnation, 1, at(field, "incarnation"))
    require_at_least(message.version, 1, at(field, "version"))
    require(
        len(message.digest) == DIGEST_BYTES,
        at(field, "digest"),
        f"{len(message.digest)} bytes",
        f"{DIGEST_BYTES}",
    )
    require(
        len(message.base_digest) in (0, DIGEST_BYTES),
        at(field, "base_digest"),
        f"{len(message.base_digest)} bytes",
        f"{DIGEST_BYTES}, or none",
    )
    kind = enum_from_proto(message.kind, PUSH_KINDS, at(field, "kind"))
    tensors = tuple(
        tensor_spec_from_proto(spec, at(field, f"tensors[{index}]"))
        for index, spec in enumerate(message.tensors)
    )
    require(bool(tensors), at(field, "tensors"), "none", "every tensor of the result")
    for first, second in pairwise(tensors):
        require(
            first.name < second.name,
            at(field, "tensors"),
            f"{second.name!r} after {first.name!r}",
            "distinct names in sorted order",
        )
    sizes = len(tensors) if kind is PushKind.DELTA else 0
    require(
        len(message.delta_sizes) == sizes,
        at(field, "delta_sizes"),
        f"{len(message.delta_sizes)} sizes",
        f"{sizes} for kind {kind.name} with {len(tensors)} tensors",
    )
    return PushHeader(
        run_id=message.run_id,
        incarnation=message.incarnation,
        agent=message.agent,
        version=message.version,
        digest=message.digest,
        kind=kind,
        tensors=tensors,
        base_version=message.base_version,
        base_digest=message.base_digest,
        delta_sizes=tuple(message.delta_sizes),
    )


def weights_chunk_to_proto(chunk: WeightsChunk) -> pb.WeightsChunk:
    """A part of one tensor."""
    return pb.WeightsChunk(
        tensor_index=chunk.tensor_index,
        offset=chunk.offset,
        data=bytes(chunk.data),
        checksum=chunk.checksum,
    )


def weights_chunk_from_proto(message: pb.WeightsChunk, field: str = "chunk") -> WeightsChunk:
    """A part of one tensor.

    Raises:
        FieldError: It is empty. Whether it fits the header and its checksum is for the receiver to
            check.
    """
    require(bool(message.data), at(field, "data"), "no bytes", "at least one")
    return WeightsChunk(message.tensor_index, message.offset, message.data, message.checksum)


PushPart = PushHeader | WeightsChunk | StoredChunks


def push_request_to_proto(part: PushPart) -> pb.PushWeightsRequest:
    """One message of a push."""
    if isinstance(part, PushHeader):
        return pb.PushWeightsRequest(header=push_header_to_proto(part))
    if isinstance(part, StoredChunks):
        stored = pb.StoredChunks(chunk_bytes=part.chunk_bytes, checksums=part.checksums)
        return pb.PushWeightsRequest(stored=stored)
    return pb.PushWeightsRequest(chunk=weights_chunk_to_proto(part))


def push_request_from_proto(message: pb.PushWeightsRequest) -> PushPart:
    """One message of a push; FieldError where it is neither header nor chunks."""
    part = message.WhichOneof("part")
    if part == "header":
        return push_header_from_proto(message.header)
    if part == "chunk":
        return weights_chunk_from_proto(message.chunk)
    if part == "stored":
        return StoredChunks(message.stored.chunk_bytes, tuple(message.stored.checksums))
    raise FieldError("part", "nothing", "a header first, then chunks")


def push_result_to_proto(result: PushResult) -> pb.PushWeightsResponse:
    """The answer to an applied push."""
    return pb.PushWeightsResponse(
        weights_version=result.weights_version,
        digest=result.digest,
        instance_id=result.instance_id,
        boot_id=result.boot_id,
        pause_seconds=result.pause_seconds,
    )


def push_result_from_proto(message: pb.PushWeightsResponse) -> PushResult:
    """The answer to an applied push."""
    require(
        math.isfinite(message.pause_seconds) and message.pause_seconds >= 0,
        "pause_seconds",
        message.pause_seconds,
        "a finite number of seconds, at least 0",
    )
    return PushResult(
        weights_version=message.weights_version,
        digest=message.digest,
        instance_id=message.instance_id,
        boot_id=message.boot_id,
        pause_seconds=message.pause_seconds,
    )


@dataclass(frozen=True, slots=True)
class PushQuery:
    """Names the push that GetPushStatus asks about."""

    run_id: str
    incarnation: int
    version: int
    digest: bytes
    kind: PushKind


def push_status_request_to_proto(push: PushHeader | PushQuery) -> pb.GetPushStatusRequest:
    """A question about a push, by what opens it or what names it."""
    return pb.GetPushStatusRequest(
        run_id=push.run_id,
        incarnation=push.incarnation,
        version=push.version,
        digest=push.digest,
        kind=PUSH_KIND_NUMBERS[push.kind],
    )


def push_status_request_from_proto(message: pb.GetPushStatusRequest) -> PushQuery:
    """A question about a push; FieldError where it names no push."""
    require_id(message.run_id, "run_id")
    require_at_least(message.incarnation, 1, "incarnation")
    require_at_least(message.version, 1, "version")
    require(
        len(message.digest) == DIGEST_BYTES,
        "digest",
        f"{len(message.digest)} bytes",
        f"{DIGEST_BYTES}",
    )
    return PushQuery(
        run_id=message.run_id,
        incarnation=message.incarnation,
        version=message.version,
        digest=message.digest,
        kind=enum_from_proto(message.kind, PUSH_KINDS, "kind"),
    )


def push_status_to_proto(status: PushStatus) -> pb.GetPushStatusResponse:
    """How far a push has come."""
    return pb.GetPushStatusResponse(
        state=_STATE_NUMBERS[status.state],
        received_bytes=status.received_bytes,
        loaded=loaded_weights_to_proto(status.loaded),
    )


def push_status_from_proto(message: pb.GetPushStatusResponse) -> PushStatus:
    """How far a push has come."""
    return PushStatus(
        state=enum_from_proto(message.state, _STATES, "state"),
        received_bytes=tuple(message.received_bytes),
        loaded=loaded_weights_from_proto(message.loaded),
    )
