"""LoRA adapters: their names on the wire, and their part in a forward.

A linear layer x -> base(x) with an adapter of rank r (arXiv 2106.09685, equation 3) computes

    y = base(x) + B(A(x)) * scaling          A [r, in], B [out, r], scaling alpha / r as a rule

on the wire as three tensors beside those of the model, whose own names do not change:

    <layer>.lora_A.weight    [r, in]     in the wire's number format
    <layer>.lora_B.weight    [out, r]    in the wire's number format
    <layer>.lora_scaling     []          always float32

The model's weights are never touched: nothing is merged, so nothing drifts, and the sum is that of
peft's own layer, operation by operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.pytorch_utils import Conv1D

from antiphon.clients.types import FieldError, TensorDtype

A, B, SCALING = ".lora_A.weight", ".lora_B.weight", ".lora_scaling"
_SUFFIXES = (A, B, SCALING)
_WHOLE = "lora_A.weight, lora_B.weight and lora_scaling of every adapted layer"

Shapes = Mapping[str, tuple[int, ...]]


def is_adapter_tensor(name: str) -> bool:
    """Whether a tensor on the wire is an adapter's."""
    return name.endswith(_SUFFIXES)


def adapter_dtype(name: str, wire: TensorDtype) -> TensorDtype:
    """Number format of a tensor on the wire, whose weights travel as `wire`."""
    return TensorDtype.FLOAT32 if name.endswith(SCALING) else wire


def check_adapter(
    model: nn.Module, given: Iterable[tuple[str, tuple[int, ...]]], field: str
) -> None:
    """Check that an adapter's tensors are whole and fit the layers of a model.

    Args:
        model: Without an adapter.
        given: Name and shape of each tensor.
        field: Where they stand, for the message.

    Raises:
        FieldError: Names the first tensor that does not fit, and what would.
    """
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in given:
        suffix = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), None)
        if suffix is None:
            raise FieldError(field, f"{name!r}", f"an adapter's tensors alone: {_WHOLE}")
        layers.setdefault(name.removesuffix(suffix), {})[suffix] = shape
    modules = dict(model.named_modules())
    for layer, shapes in layers.items():
        sizes = _sizes(modules.get(layer))
        if sizes is None:
            raise FieldError(field, f"{layer!r}", "the name of a linear layer of this model")
        inputs, outputs = sizes
        rank = shapes.get(A, (0,))[0]
        wanted = {A: (rank, inputs), B: (outputs, rank), SCALING: ()}
        for suffix in _SUFFIXES:
            if suffix not in shapes:
                raise FieldError(field, f"{layer!r} without {suffix[1:]}", _WHOLE)
            if shapes[suffix] != wanted[suffix] or rank < 1:
                raise FieldError(
                    field,
                    f"{layer + suffix!r} of shape {list(shapes[suffix])}",
                    f"shape {list(wanted[suffix])}",
                )


class Adapter:
    """The adapter of a model; none to begin with.

    Args:
        model: Whose layers it adds to. Its weights stay as they are.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._layers: dict[str, _Layer] = {}
        self._handles: list[RemovableHandle] = []

    def replace(self, tensors: Mapping[str, Tensor]) -> None:
        """Take another adapter, or none where there are no tensors.

        The tensors are copied to the layers' device and number format.

        Raises:
            FieldError: As `check_adapter`; the old adapter stays.
        """
        shapes = ((name, tuple(tensor.shape)) for name, tensor in tensors.items())
        check_adapter(self._model, shapes, "tensors")
        modules = dict(self._model.named_modules())
        names = [name.removesuffix(A) for name in tensors if name.endswith(A)]
        layers = {name: _layer(modules[name], name, tensors) for name in names}
        for handle in self._handles:
            handle.remove()
        self._handles = [
            modules[name].register_forward_hook(layer.add) for name, layer in layers.items()
        ]
        self._layers = layers


@dataclass(frozen=True)
class _Layer:
    a: Tensor
    b: Tensor
    scaling: float

    def add(self, _module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """The layer's output with the adapter's part."""
        linear = nn.functional.linear
        return output + linear(linear(inputs[0], self.a), self.b) * self.scaling


def _layer(module: nn.Module, name: str, tensors: Mapping[str, Tensor]) -> _Layer:
    weight: Tensor = module.weight  # type: ignore[assignment]
    a, b = (tensors[name + suffix].to(weight.device, weight.dtype, copy=True) for suffix in (A, B))
    return _Layer(a, b, tensors[name + SCALING].to(torch.float32).item())


def _sizes(module: nn.Module | None) -> tuple[int, int] | None:
    """Features in and out of a linear layer, None for anything else."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if isinstance(module, Conv1D):
        inputs, outputs = module.weight.shape
        return int(inputs), int(outputs)
    return None
