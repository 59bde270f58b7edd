"""A delta that has arrived becomes changes of single elements, proved before they are applied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import grpc
import torch
from torch import Tensor

from antiphon.clients.digest import tensor_checksum, weights_digest
from antiphon.clients.types import FieldError, PushHeader, TensorSpec
from antiphon.services.common.changes import Patterns, decode_change, patterns
from antiphon.services.common.errors import ServiceError
from antiphon.services.common.tensors import TORCH_DTYPES, to_bytes
from antiphon.services.generation.engine import ChangeableEngine, ChangedTensor, PushedTensor


def check_delta(header: PushHeader, base: Sequence[TensorSpec]) -> None:
    """Checks that a DELTA's header fits the tensors that it starts from.

    Args:
        header: Its tensors have the names and shapes of the model's, its base is what is loaded.
        base: The model's own tensors as they are loaded, sorted by name.

    Raises:
        ServiceError: FAILED_PRECONDITION with PUSH_BASE_MISMATCH: an adapter is loaded.
        FieldError: A number format is another, a tensor is said to be as in the base and is not, or
            the delta is larger than all tensors.
    """
    if weights_digest(base) != header.base_digest:
        raise ServiceError(
            grpc.StatusCode.FAILED_PRECONDITION,
            "header.kind: got DELTA, wanted FULL or ADAPTER: an adapter is loaded, which a delta "
            "of the model's own tensors would leave in doubt",
            reason="PUSH_BASE_MISMATCH",
        )
    pairs = zip(header.tensors, base, header.delta_sizes, strict=True)
    for index, (new, old, size) in enumerate(pairs):
        field = f"header.tensors[{index}]"
        if new.dtype is not old.dtype:
            raise FieldError(f"{field}.dtype", new.dtype, f"{old.dtype}, as in the base")
        if not size and new.checksum != old.checksum:
            raise FieldError(
                f"{field}.checksum",
                new.checksum.hex(),
                f"{old.checksum.hex()}, that of the base, for a tensor whose delta_size is 0",
            )
    whole = sum(spec.nbytes for spec in header.tensors)
    if sum(header.delta_sizes) > whole:
        raise FieldError(
            "header.delta_sizes",
            f"{sum(header.delta_sizes)} bytes in all",
            f"at most {whole}, those of the tensors; push FULL instead",
        )


def decode_delta(engine: ChangeableEngine, pushed: Iterable[PushedTensor]) -> list[ChangedTensor]:
    """The changes that make the loaded tensors those of the header. Takes a while.

    Args:
        engine: Has the base loaded.
        pushed: Each tensor as it is then, and its encoded change.

    Raises:
        FieldError: The bytes are no change of such a tensor.
        ServiceError: FAILED_PRECONDITION with PUSH_BASE_MISMATCH: the result is not as the header
            says. What arrived was sound, so sending it again would give the same.
    """
    loaded = engine.own_tensors()
    return [_changed(loaded[one.spec.name], one) for one in pushed if one.data.nbytes]


def _changed(loaded: Tensor, pushed: PushedTensor) -> ChangedTensor:
    spec = pushed.spec
    base = patterns(to_bytes(loaded, spec.dtype), spec.dtype)
    try:
        positions, values = decode_change(pushed.data, base)
    except FieldError as error:
        raise FieldError(f"{error.field} of {spec.name!r}", error.got, error.wanted) from error
    result = base.copy()
    result[positions] = values
    if tensor_checksum(result.data.cast("B")) != spec.checksum:
        raise ServiceError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"the changed tensor {spec.name!r} does not match its checksum: the delta is of other "
            f"weights than these, or {loaded.dtype}, which the engine holds them in, has not every "
            f"bit of {spec.dtype}; nothing was applied, push FULL instead",
            reason="PUSH_BASE_MISMATCH",
            metadata={"tensor": spec.name},
        )
    return ChangedTensor(spec, torch.from_numpy(positions), _elements(values, spec))


def _elements(values: Patterns, spec: TensorSpec) -> Tensor:
    signed = values.view(f"i{values.itemsize}")
    return torch.from_numpy(signed).view(TORCH_DTYPES[spec.dtype])
