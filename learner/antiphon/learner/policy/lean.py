"""What a model's modules compute, with fewer passes over memory and less kept: the same numbers.

Written out in torch, a norm and a gated layer keep what they made on the way for the backward pass,
and go over it once for each operation. As functions with a gradient of their own they keep their
inputs alone:

    RMS norm      y = w x r,   r = (mean(x^2) + eps)^-1/2
                  dx = r (w g) - x r^3 mean(w g x),   dw = sum g x r
    gated layer   y = h W',   h = silu(a) b
                  da = (g W) b silu'(a),   db = (g W) silu(a),   dW = g' h

and an embedding's gradient is that of the rows that were looked up. Which modules are such is found
out by trying them, on a CPU in float32; all others are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

_EPSILONS = "variance_epsilon", "eps"
_GATED = "gate_proj", "up_proj", "down_proj"


class Lean:
    """A model's modules that have a leaner way to the same numbers.

    Args:
        model: In eval mode.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._forwards: list[tuple[Any, Callable[[Tensor], Tensor]]] = []
        self._embeddings: list[nn.Embedding] = []
        if any(type(p) is not nn.Parameter or not _plain(p) for p in model.parameters()):
            return
        for module in model.modules():
            leaner = _norm(module) or _gated(module)
            if leaner is not None:
                self._forwards.append((module, leaner))
            if _looks_up(module):
                self._embeddings.append(module)

    def __bool__(self) -> bool:
        """Whether there are any, so that gradients may be sparse within `used`."""
        return bool(self._forwards or self._embeddings)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within it, the modules compute so, forward and backward; then gradients are dense."""
        for module, leaner in self._forwards:
            module.forward = leaner
        for embedding in self._embeddings:
            embedding.sparse = True
        try:
            yield
        finally:
            for module, _ in self._forwards:
                del module.forward
            for embedding in self._embeddings:
                embedding.sparse = False
            for parameter in self._model.parameters():
                if parameter.grad is not None and parameter.grad.is_sparse:
                    parameter.grad = parameter.grad.to_dense()


def _plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


def _looks_up(module: nn.Module) -> TypeGuard[nn.Embedding]:
    return (
        type(module) is nn.Embedding
        and module.weight.requires_grad
        and module.max_norm is None
        and not module.scale_grad_by_freq
        and not module.sparse
    )


@torch.no_grad()
def _norm(module: Any) -> Callable[[Tensor], Tensor] | None:
    """An RMS norm's forward; None where the module is none."""
    weight = dict(module.named_parameters(recurse=False)).get("weight")
    found = [getattr(module, name) for name in _EPSILONS if hasattr(module, name)]
    if weight is None or weight.ndim != 1 or not found or "forward" in vars(module):
        return None
    if not isinstance(found[0], float) or len(list(module.parameters())) != 1:
        return None

    def norm(states: Tensor) -> Tensor:
        normed: Tensor = _RmsNorm.apply(states, module.weight, found[0])  # type: ignore[no-untyped-call]
        return normed

    states, other = _some(3, weight.numel()), _some(weight.numel())
    try:
        wanted = torch.func.functional_call(module, {"weight": other}, (states,))
    except (RuntimeError, TypeError, ValueError):
        return None
    return norm if _same(_normed(states, other, found[0])[0], wanted) else None


@torch.no_grad()
def _gated(module: Any) -> Callable[[Tensor], Tensor] | None:
    """A gated layer's forward; None where the module is none."""
    gate, up, down = (getattr(module, name, None) for name in _GATED)
    width = getattr(gate, "in_features", None)
    if up is None or type(down) is not nn.Linear or down.bias is not None or _watched(down):
        return None
    if not isinstance(width, int) or "forward" in vars(module):
        return None

    def gated(states: Tensor) -> Tensor:
        inputs = module.gate_proj(states), module.up_proj(states)
        output: Tensor = _GatedDown.apply(*inputs, module.down_proj.weight)
        return output

    states = _some(3, width)
    try:
        wanted = module(states)
    except (RuntimeError, TypeError, ValueError):
        return None
    return gated if _same(gated(states), wanted) else None


def _watched(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _some(*shape: int) -> Tensor:
    """Numbers around 0, the same ones every time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _same(got: Tensor, wanted: Any) -> bool:
    if not isinstance(wanted, Tensor) or wanted.shape != got.shape or wanted.dtype != got.dtype:
        return False
    return torch.allclose(got, wanted, rtol=1e-5, atol=1e-6)


def _normed(states: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    inverse = torch.rsqrt(states.square().mean(-1, keepdim=True) + epsilon)
    return (states * inverse).mul_(weight), inverse


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        normed, inverse = _normed(states, weight, epsilon)
        ctx.save_for_backward(states, weight, inverse)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, inverse = ctx.saved_tensors
        size = weight.numel()
        products = gradient * states
        by_weight = None
        if ctx.needs_input_grad[1]:
            by_weight = products.reshape(-1, size).t().mv(inverse.reshape(-1))
        along = (products @ weight).unsqueeze(-1).mul_(inverse.pow(3)).div_(-size)
        by_states = torch.mul(gradient, weight, out=products).mul_(inverse)
        return by_states.addcmul_(states, along), by_weight, None


class _GatedDown(torch.autograd.Function):
    """(silu(gate) * up) weight'; what is multiplied is made again going backward."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up, weight)
        return F.linear(F.silu(gate).mul_(up), weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, weight = ctx.saved_tensors
        active, inner = F.silu(gate), gradient @ weight
        by_weight = None
        if ctx.needs_input_grad[2]:
            products = (active * up).reshape(-1, up.shape[-1])
            by_weight = gradient.reshape(-1, gradient.shape[-1]).t() @ products
            del products
        by_up = active.mul_(inner)
        return torch.ops.aten.silu_backward(inner.mul_(up), gate), by_up, by_weight
