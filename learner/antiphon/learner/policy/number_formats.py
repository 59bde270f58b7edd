"""The number format that a policy computes in: its weights are exactly those on the wire in it.

    float32     holds bf16 weights exactly; sums and products are float32's
    bfloat16    half the memory and, on a GPU, several times the speed; activations and the
                gradients of one micro-batch are rounded to bf16, the master weights and the sum of
                gradients over micro-batches are float32 all the same

An engine that computes in the same format agrees with the learner to that format's rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from antiphon.clients.types import TensorDtype
from antiphon.services.common.tensors import TORCH_DTYPES


class ComputeDtype(StrEnum):
    """What a model computes in; `auto` is float32 on a CPU and the wire's format elsewhere."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def compute_dtype(compute: str, wire: TensorDtype, device: torch.device) -> torch.dtype:
    """The format to compute in, as torch names it."""
    if compute != ComputeDtype.AUTO:
        return TORCH_DTYPES[TensorDtype(compute)]
    return torch.float32 if device.type == "cpu" else TORCH_DTYPES[wire]


@torch.no_grad()
def to_compute_dtype(
    model: nn.Module, sent: Mapping[str, Tensor], wire: TensorDtype, compute: str
) -> None:
    """Round what goes over the wire to its format, and make the model compute in its own.

    Args:
        model: Changed in place.
        sent: Its tensors that go over the wire, sharing its memory.
        wire: Their number format there.
        compute: A ComputeDtype, no narrower than `wire`.
    """
    for tensor in sent.values():
        tensor.copy_(tensor.to(TORCH_DTYPES[wire]))
    stored = model.state_dict(keep_vars=True).keys()
    derived = _derived_buffers(model)
    for name, tensor in floating(model):
        if name in derived:
            tensor.data = derived[name].to(tensor.device)
        elif name in stored:
            tensor.data = tensor.data.to(compute_dtype(compute, wire, tensor.device))
        else:
            tensor.data = tensor.data.float()


def floating(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Floating-point parameters and buffers, each once."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point():
            yield name, tensor


def _derived_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Buffers that follow from the architecture (rotary frequencies), by name, at full precision.

    `model.to(bfloat16)` rounds them, and no push mends it: the engine builds its own. Where they
    were rounded they are taken from the same architecture built anew; else none is given.
    """
    stored = model.state_dict(keep_vars=True).keys()
    rounded = [
        name
        for name, buffer in model.named_buffers()
        if name not in stored and buffer.is_floating_point() and buffer.itemsize < 4
    ]
    if not rounded or not isinstance(model, PreTrainedModel):
        return {}
    with no_init_weights():
        fresh = dict(type(model)(model.config).named_buffers())
    return {name: fresh[name].float() for name in rounded if name in fresh}
