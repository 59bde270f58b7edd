"""A model's weights as tensors on the wire, and back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

import torch
from torch import Tensor, nn

from antiphon.clients.digest import tensor_checksum
from antiphon.clients.types import FieldError, TensorDtype, TensorSpec

TORCH_DTYPES = {TensorDtype.BFLOAT16: torch.bfloat16, TensorDtype.FLOAT32: torch.float32}


_PLAIN = (Tensor, nn.Parameter)


def wire_entries(model: nn.Module) -> dict[str, list[Tensor]]:
    """The entries of a model's state dict behind each tensor of a push, by its name, sorted.

    They are the floating-point entries; tied entries appear together, under the name that comes
    first in the model.
    """
    names: dict[Hashable, str] = {}
    entries: dict[str, list[Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if tensor.is_floating_point():
            first = names.setdefault(_memory(tensor), name)
            entries.setdefault(first, []).append(tensor)
    return dict(sorted(entries.items()))


def wire_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a push of `model` holds, by name, sorted; see `wire_entries`.

    They share the model's memory: what is written to them is the model's.
    """
    return {name: entries[0].detach() for name, entries in wire_entries(model).items()}


def _memory(tensor: Tensor) -> Hashable:
    # A subclass that parts a tensor among processes keeps its memory to itself.
    if tensor.is_meta or tensor.numel() == 0 or type(tensor) not in _PLAIN:
        return id(tensor)
    return (
        tensor.untyped_storage().data_ptr(),
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
    )


def to_bytes(tensor: Tensor, dtype: TensorDtype) -> memoryview:
    """The tensor's numbers in `dtype`, row-major and little endian, as flat bytes.

    Shares the tensor's memory where it holds them like that already.
    """
    flat = tensor.detach().to("cpu", TORCH_DTYPES[dtype]).contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def from_bytes(
    buffer: bytes | bytearray | memoryview, dtype: TensorDtype, shape: tuple[int, ...]
) -> Tensor:
    """The tensor whose bytes `to_bytes` gave. Shares a writable buffer's memory.

    Raises:
        FieldError: The buffer's length does not fit the shape.
    """
    wanted = TensorSpec("", dtype, shape, b"").nbytes
    view = memoryview(buffer).cast("B")
    if view.nbytes != wanted:
        raise FieldError("buffer", f"{view.nbytes} bytes", f"{wanted} for shape {list(shape)}")
    if wanted == 0:
        return torch.empty(shape, dtype=TORCH_DTYPES[dtype])
    writable = bytearray(view) if view.readonly else view
    return torch.frombuffer(writable, dtype=TORCH_DTYPES[dtype]).reshape(shape)


def tensor_specs(tensors: Mapping[str, Tensor], dtype: TensorDtype) -> tuple[TensorSpec, ...]:
    """What a push of `tensors` in `dtype` says of them, sorted by name."""
    return tuple(
        TensorSpec(name, dtype, tuple(tensor.shape), tensor_checksum(to_bytes(tensor, dtype)))
        for name, tensor in sorted(tensors.items())
    )


def tensor_shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_names_and_shapes(
    wanted: Mapping[str, tuple[int, ...]], given: Iterable[tuple[str, tuple[int, ...]]], field: str
) -> None:
    """Checks that `given` names each of the `wanted` tensors once, in their shapes.

    Args:
        wanted: Shapes of a model's wire tensors.
        given: Name and shape of each tensor that is to replace them.
        field: Where the given tensors stand, for the message.

    Raises:
        FieldError: Naming the tensors that are unknown, missing, doubled or of another shape.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for index, (name, shape) in enumerate(given):
        if name not in wanted:
            raise FieldError(
                f"{field}[{index}].name",
                f"{name!r}",
                "a tensor of this model (tied tensors are named once, by the first of their "
                "names); check that sender and receiver hold the same architecture",
            )
        if name in shapes:
            raise FieldError(f"{field}[{index}].name", f"{name!r} again", "each tensor once")
        if shape != wanted[name]:
            raise FieldError(
                f"{field}[{index}].shape",
                f"{list(shape)}",
                f"{list(wanted[name])} for {name!r}",
            )
        shapes[name] = shape
    if missing := [name for name in wanted if name not in shapes]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise FieldError(
            field,
            f"{len(shapes)} tensors",
            f"all {len(wanted)} of the model; missing: {', '.join(missing[:3])}{more}",
        )
