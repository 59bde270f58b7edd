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


class Layout:
    """The layout of a model's linear layers: column-major where it computes in float32 on a CPU.

    A layer that shares its weight with an embedding, which looks rows up, leaves it as it is and
    multiplies by a copy.

    Args:
        model: Its layers are laid out at once.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.copies: list[ColumnMajorCopy] = []
        users: dict[int, list[nn.Module]] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                users.setdefault(id(parameter), []).append(module)
        for module in model.modules():
            if type(module) is not nn.Linear or not _gains(module.weight):
                continue
            if all(type(user) is nn.Linear for user in users[id(module.weight)]):
                module.weight.data = column_major(module.weight)
            else:
                copy = ColumnMajorCopy(module)
                module.forward = copy.forward  # type: ignore[method-assign, assignment]
                self.copies.append(copy)

    def copies_of(self, weight: Tensor) -> list[Tensor]:
        """The copies that layers multiply by in place of a weight; they must change as it does."""
        return [
            copy.weight for copy in self.copies if copy.layer.weight.data_ptr() == weight.data_ptr()
        ]


def _gains(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype is torch.float32


class ColumnMajorCopy:
    """The copy of a linear layer's weight that it multiplies by."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer
        self.weight = column_major(layer.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """What the layer computes."""
        return nn.functional.linear(inputs, self.weight, self.layer.bias)
