"""How linear layers multiply the few rows x [n, in] of a decode step fast, in float32 on a CPU.

A layer keeps W [out, in] row after row. With AVX2 that is well, and a layer of many outputs, such
as the head, computes some of them at a time, so that what a core makes of them stays in its cache.
On all other processors, those with AVX-512 first, W lies column after column, for which the product
x Wᵀ is faster; its shape, name and numbers stay the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MANY_OUTPUTS = 1 << 13
"""A layer of so many computes them in parts."""
OUTPUTS_AT_A_TIME = 768
"""Of each thread."""
FEW_ROWS = 128
"""Of more rows all outputs are computed at once: then it saves nothing."""


def column_major(weight: Tensor) -> Tensor:
    """A copy of a matrix that lies column after column."""
    return weight.detach().t().contiguous().t()


def multiply_few_rows_fast(model: PreTrainedModel, *, columns: bool | None = None) -> None:
    """Have a model's linear layers multiply few rows fast where it computes in float32 on a CPU.

    Args:
        model: Changed in place; names, shapes and numbers of its weights stay.
        columns: Whether weights are laid out column after column, else large layers compute in
            parts; None for what is faster on this machine.
    """
    if columns is None:
        columns = torch.backends.cpu.get_cpu_capability() != "AVX2"
    layers = [module for module in model.modules() if type(module) is nn.Linear]
    if columns:
        _lay_out_in_columns(model, layers)
    else:
        for layer in layers:
            if _gains(layer.weight) and layer.out_features >= MANY_OUTPUTS:
                cast("Any", layer).forward = _in_parts(layer)


def _lay_out_in_columns(model: PreTrainedModel, layers: list[nn.Linear]) -> None:
    """An embedding that shares its weight with a layer looks its rows up there too.

    To gather a row from all columns costs little beside the product.
    """
    users: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), []).append(module)
    for layer in layers:
        others = users[id(layer.weight)]
        if _gains(layer.weight) and all(type(user) in (nn.Linear, nn.Embedding) for user in others):
            layer.weight.data = column_major(layer.weight)


def _in_parts(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    def forward(states: Tensor) -> Tensor:
        if states.numel() > FEW_ROWS * layer.in_features:
            return F.linear(states, layer.weight, layer.bias)
        size = OUTPUTS_AT_A_TIME * torch.get_num_threads()
        weights = torch.split(layer.weight, size)
        biases = [None] * len(weights) if layer.bias is None else torch.split(layer.bias, size)
        parts = [F.linear(states, w, b) for w, b in zip(weights, biases, strict=True)]
        return torch.cat(parts, -1)

    return forward


def _gains(weight: Tensor) -> bool:
    row_major = weight.is_contiguous()
    return weight.device.type == "cpu" and weight.dtype is torch.float32 and row_major
