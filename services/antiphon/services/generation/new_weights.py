"""The next weights of a model, ready to be put in between two steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from antiphon.services.common.tensors import check_names_and_shapes, tensor_shapes, wire_entries
from antiphon.services.generation.layout import ColumnMajorCopy, Layout, column_major

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class NewWeights:
    """A model's next weights, made ready while the present ones still sample.

    On a CPU they lie beside the present ones, in the same layout, so that putting them in only
    exchanges pointers. A GPU has no room for both: there they are copied when put in.

    Args:
        model: Keeps its weights until `put_in`.
        layout: Of its layers.
        tensors: All of the model's wire tensors, by name, in any number format.

    Raises:
        FieldError: A tensor is unknown, missing or of another shape.
    """

    def __init__(
        self, model: PreTrainedModel, layout: Layout, tensors: Mapping[str, Tensor]
    ) -> None:
        entries = wire_entries(model)
        shapes = {name: tuple(held[0].shape) for name, held in entries.items()}
        check_names_and_shapes(shapes, tensor_shapes(tensors).items(), "tensors")
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._beside = model.device.type == "cpu"
        self._copies: list[tuple[ColumnMajorCopy, Tensor]] = []
        ready: dict[int, Tensor] = {}
        for name, held in entries.items():
            new = tensors[name]
            if self._beside:
                # Dense strides are kept: what lies column-major does so again.
                new = torch.empty_like(held[0], requires_grad=False).copy_(new)
            self._pairs += [(entry, new) for entry in held]
            ready |= {id(entry): new for entry in held}
        for copy in layout.copies:
            self._copies.append((copy, column_major(ready[id(copy.layer.weight)])))

    def put_in(self) -> None:
        """Makes them the model's; nothing may be computing with it."""
        for entry, new in self._pairs:
            if self._beside:
                entry.data = new
            else:
                entry.data.copy_(new)
        for copy, weight in self._copies:
            copy.weight = weight
