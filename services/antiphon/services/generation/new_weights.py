"""The next weights of a model, ready to be put in between two steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from antiphon.services.common.memory import mapped_like
from antiphon.services.common.tensors import check_names_and_shapes, tensor_shapes, wire_entries

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_ROWS = 256
"""Rows that are laid out together: their columns stay in a core's cache meanwhile."""


class NewWeights:
    """A model's next weights, made ready while the present ones still sample.

    On a CPU they lie beside the present ones, in the same layout, so that putting them in only
    exchanges pointers. A GPU has no room for both: there they are copied when put in.

    Args:
        model: Keeps its weights until `put_in`.
        tensors: All of the model's wire tensors, by name, in any number format.

    Raises:
        FieldError: A tensor is unknown, missing or of another shape.
    """

    def __init__(self, model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
        entries = wire_entries(model)
        shapes = {name: tuple(held[0].shape) for name, held in entries.items()}
        check_names_and_shapes(shapes, tensor_shapes(tensors).items(), "tensors")
        self._beside = model.device.type == "cpu"
        ready = [tensors[name] for name in entries]
        if self._beside:
            rooms = mapped_like([held[0] for held in entries.values()])
            ready = [_filled(room, new) for room, new in zip(rooms, ready, strict=True)]
        self._pairs = [
            (entry, new)
            for held, new in zip(entries.values(), ready, strict=True)
            for entry in held
        ]

    def put_in(self) -> None:
        """Makes them the model's; nothing may be computing with it."""
        for entry, new in self._pairs:
            if self._beside:
                entry.data = new
            else:
                entry.data.copy_(new)


def _filled(room: Tensor, new: Tensor) -> Tensor:
    for part, given in zip(_parts(room), _parts(new), strict=True):
        part.copy_(given)
    return room


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    return torch.split(tensor, _ROWS) if tensor.ndim else (tensor,)
