"""A model parted over ranks by FSDP2, and filled with its weights.

Each layer is a unit of its own: its parameters are put together before it computes and parted
again after it. What lies outside the layers (embedding, norm, head) is the root unit, which stays
together from a forward to the end of its backward, so that the head is there for the loss
(`antiphon.learner.policy.gradient`). Gradients are summed over ranks in float32: the weights of a
step's loss are those of the whole step already.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from antiphon.clients.types import TensorDtype
from antiphon.learner.distributed.source import ModelSource
from antiphon.learner.policy.number_formats import compute_dtype
from antiphon.services.common.tensors import TORCH_DTYPES


def sharded_model(
    source: ModelSource,
    mesh: DeviceMesh,
    *,
    wire: TensorDtype,
    compute: str,
    offload: bool,
) -> nn.Module:
    """A model of which each rank of the mesh holds a part, computing with its weights on the wire.

    The first rank of the mesh reads the weights into main memory and hands them out tensor by
    tensor; no other rank ever holds more of them than one tensor beside its own part.

    Args:
        source: Where the model is.
        mesh: The ranks.
        wire: Number format of weights on the wire, to which they are rounded.
        compute: What it computes in, a ComputeDtype.
        offload: Hold this rank's part, and so the optimiser, in main memory.
    """
    model = _parted(source, mesh, wire=wire, compute=compute, offload=offload)
    _fill(model, source, mesh, wire)
    return model


@torch.no_grad()
def sharded_copy(
    model: nn.Module,
    source: ModelSource,
    mesh: DeviceMesh,
    *,
    wire: TensorDtype,
    compute: str,
    offload: bool,
) -> nn.Module:
    """A frozen copy of a sharded model as it is now: each rank copies its own part.

    Args:
        model: What `sharded_model` made.
        source: As there, and so are the others.
        mesh: The ranks.
        wire: Number format of weights on the wire.
        compute: What it computes in.
        offload: Hold this rank's part in main memory.
    """
    copied = _parted(source, mesh, wire=wire, compute=compute, offload=offload)
    copied.requires_grad_(False).eval()
    own = model.state_dict(keep_vars=True)
    for name, held in copied.state_dict(keep_vars=True).items():
        held_part(held).copy_(held_part(own[name]))
    return copied


def _parted(
    source: ModelSource, mesh: DeviceMesh, *, wire: TensorDtype, compute: str, offload: bool
) -> nn.Module:
    """A model without its weights, of which this rank has room for its part."""
    dtype = compute_dtype(compute, wire, torch.device(mesh.device_type))
    model: nn.Module = source.architecture(dtype)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)  # peft makes adapters in float32
    _exact_buffers(model, source)
    _shard(model, mesh, offload=offload)
    return model


def held_part(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds; shares its memory."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def give_back(model: nn.Module) -> None:
    """Part what is still together after a forward without a backward."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _shard(model: nn.Module, mesh: DeviceMesh, *, offload: bool) -> None:
    pinned = mesh.device_type != "cpu"
    # What it says of outputs that are changed in place happens to no model here.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=pinned) if offload else OffloadPolicy(),
    }
    for module in _units(model):
        fully_shard(module, reshard_after_forward=True, **options)
    fully_shard(model, reshard_after_forward=False, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _units(model: nn.Module) -> list[nn.Module]:
    """The layers, as transformers marks them, outermost only."""
    found: list[nn.Module] = []
    inner: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer) and module not in inner:
            found.append(module)
            inner.update(module.modules())
    return found


@torch.no_grad()
def _fill(model: nn.Module, source: ModelSource, mesh: DeviceMesh, wire: TensorDtype) -> None:
    """Give every rank its part of the weights; buffers that are saved, whole."""
    first = dist.get_global_rank(mesh.get_group(), 0)
    whole = source.load().state_dict() if dist.get_rank() == first else {}
    filled: set[int] = set()
    for name, held in model.state_dict(keep_vars=True).items():
        value = whole.pop(name, None)
        if id(held) in filled:  # a tied one, filled under its first name
            continue
        filled.add(id(held))
        given = torch.empty(held.shape, dtype=TORCH_DTYPES[wire]) if value is None else value
        given = given.to(TORCH_DTYPES[wire] if held.is_floating_point() else held.dtype)
        given = given.to(mesh.device_type)
        if isinstance(held, DTensor):
            part = distribute_tensor(given, mesh, [Shard(0)], src_data_rank=0)
            held.to_local().copy_(part.to_local())
        else:
            dist.broadcast(given, first, group=mesh.get_group())
            held.copy_(given)


def _exact_buffers(model: nn.Module, source: ModelSource) -> None:
    """Buffers that follow from the architecture, at full precision whatever the model's format."""
    fresh = dict(source.architecture(torch.float32).named_buffers())
    stored = model.state_dict(keep_vars=True).keys()
    for name, buffer in model.named_buffers():
        if name not in stored and buffer.is_floating_point():
            buffer.data = fresh[name].data
