"""How the weights of linear layers lie in memory, so that few rows multiply fast on a CPU.

A layer keeps W [out, in] row after row. For the few rows x of a decode step, the product x Wᵀ is
faster where W lies column after column: its shape, name and numbers stay the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def column_major(weight: Tensor) -> Tensor:
    """A copy of a matrix that lies column after column."""
    return weight.detach().t().contiguous().t()


def lay_out_for_few_rows(model: PreTrainedModel) -> None:
    """Lay a model's linear layers column after column where it computes in float32 on a CPU.

    An embedding that shares its weight with one looks its rows up there too: to gather a row from
    all columns costs little beside the product.
    """
    users: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), []).append(module)
    for module in model.modules():
        if type(module) is not nn.Linear or not _gains(module.weight):
            continue
        if all(type(user) in (nn.Linear, nn.Embedding) for user in users[id(module.weight)]):
            module.weight.data = column_major(module.weight)


def _gains(weight: Tensor) -> bool:
    row_major = weight.is_contiguous()
    return weight.device.type == "cpu" and weight.dtype is torch.float32 and row_major
