"""The float32 master weights of a policy, and AdamW (arXiv 1711.05101) that takes their steps.

For the k-th step with gradient g (summed over micro-batches in float32),

    norm   = sqrt(sum g^2)                       over all trained parameters together
    g      = g * c / norm                        where norm > c, c = `max_grad_norm`
    lr     = learning_rate * schedule.factor(k)
    master = AdamW(master, g, lr)                decay is lr * weight_decay * master
    model  = round(master)                       to the wire's number format, nearest even

Decay is of every parameter, as torch does; or of those with two dimensions and more alone, which
leaves norms and biases out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from antiphon.clients.types import FieldError, TensorDtype
from antiphon.learner.config.optimizer import OptimizerSettings
from antiphon.learner.policy.ranks import Ranks
from antiphon.services.common.memory import mapped_like
from antiphon.services.common.tensors import TORCH_DTYPES

_ROUNDED_AT_ONCE = 1 << 20
"""Elements, about. Of a whole embedding the copy in the wire's format would be part of the peak."""


class MasterOptimizer:
    """Master weights of a model's trained parameters, and their optimiser.

    Where the wire is float32, master and parameter are one. Where several ranks train a policy,
    each holds, steps and saves its own part of every tensor.

    Args:
        parameters: What is trained, by name; each already rounded to `wire_dtype`.
        settings: How.
        wire_dtype: Number format of weights on the wire.
        ranks: The processes that train it together; None for this one alone.

    Attributes:
        masters: The master weights by name, as far as this process holds them.
        steps: Steps so far.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        settings: OptimizerSettings,
        *,
        wire_dtype: TensorDtype,
        ranks: Ranks | None = None,
    ) -> None:
        self.steps = 0
        self._parameters = dict(parameters)
        self._settings = settings
        self._ranks = ranks or Ranks()
        self._wire = TORCH_DTYPES[wire_dtype]
        self._held = {name: self._ranks.local(p) for name, p in self._parameters.items()}
        self.masters = {name: self._master(held) for name, held in self._held.items()}
        self._adamw = torch.optim.AdamW(
            self._groups(),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.adam_epsilon,
            weight_decay=settings.weight_decay,
            fused=all(m.device.type in ("cpu", "cuda") for m in self.masters.values()),
        )

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        settings = self._settings
        return settings.learning_rate * settings.schedule.factor(self.steps + 1)

    def gather(self) -> None:
        """Add the model's gradients to the masters' in float32, and drop them."""
        for name, parameter in self._parameters.items():
            master = self.masters[name]
            if master is parameter or parameter.grad is None:
                continue
            gradient = self._ranks.local(parameter.grad)
            if master.grad is None:
                master.grad = gradient.float()
            else:
                master.grad += gradient
            parameter.grad = None

    def drop_gradients(self) -> None:
        """Forget all gradients."""
        for name, parameter in self._parameters.items():
            parameter.grad = None
            self.masters[name].grad = None

    def gradient_norm(self) -> float:
        """Norm of the whole gradient: over rows in its own format, then summed in float64."""
        rows = (torch.linalg.vector_norm(g, dim=-1).double() for g in self._grads())
        return math.sqrt(self._ranks.sum(sum(norms.square().sum().item() for norms in rows)))

    def step(self, gradient_norm: float) -> None:
        """Clip the gradient, whose norm is given, take one step, and round it into the model."""
        most = self._settings.max_grad_norm
        if most is not None and gradient_norm > most:
            for gradient in self._grads():
                gradient.mul_(most / gradient_norm)
        for group in self._adamw.param_groups:
            group["lr"] = self.learning_rate
        stepped = [m for m in self.masters.values() if m.grad is not None]
        self._make_moments([m for m in stepped if m not in self._adamw.state])
        self._adamw.step()
        self.steps += 1
        self._round_into_model()

    def state_dict(self) -> dict[str, Any]:
        """Masters, moments and the number of steps; tensors are live."""
        states = self._adamw.state
        return {
            "optimizer_steps": self.steps,
            "masters": {
                name: self._saved(name, master.detach()) for name, master in self.masters.items()
            },
            "moments": {
                name: {key: self._saved(name, value) for key, value in states[master].items()}
                for name, master in self.masters.items()
                if master in states
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave. Tensors are copied.

        Raises:
            FieldError: The state is of other parameters; nothing was changed.
        """
        masters = state["masters"]
        got = {name: tuple(tensor.shape) for name, tensor in masters.items()}
        wanted = {name: tuple(tensor.shape) for name, tensor in self._parameters.items()}
        for name in sorted(got.keys() | wanted.keys()):
            if got.get(name) != wanted.get(name):
                raise FieldError(
                    f"masters.{name}",
                    f"shape {got.get(name, 'missing')}",
                    f"shape {wanted.get(name, 'missing')}; the state is of another model, or "
                    "other parameters require a gradient",
                )
        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(self._ranks.local(masters[name]))
        self._adamw.state.clear()
        self._make_moments([self.masters[name] for name in state["moments"]])
        for name, moments in state["moments"].items():
            for key, value in moments.items():
                self._adamw.state[self.masters[name]][key].copy_(self._ranks.local(value))
        self.steps = state["optimizer_steps"]
        self._round_into_model()

    def _groups(self) -> list[dict[str, Any]]:
        """Parameter groups of AdamW: one, or those that decay and those that do not."""
        if self._settings.decay_norms_and_biases:
            return [{"params": list(self.masters.values())}]
        decayed = [m for m in self.masters.values() if m.ndim >= 2]
        others = [m for m in self.masters.values() if m.ndim < 2]
        groups: list[dict[str, Any]] = [
            {"params": decayed},
            {"params": others, "weight_decay": 0.0},
        ]
        return groups

    def _make_moments(self, masters: Sequence[Tensor]) -> None:
        """Make what AdamW keeps of these masters; on a CPU in mappings of their own.

        Among the blocks that a step takes and frees they would leave gaps, which the blocks of the
        next step do not fit into.
        """
        if all(master.device.type == "cpu" for master in masters):
            made = [mapped_like(masters) for _ in range(2)]  # of zeros
        else:
            made = [[torch.zeros_like(master) for master in masters] for _ in range(2)]
        for master, first, second in zip(masters, *made, strict=True):
            where = master.device if master.device.type == "cuda" else "cpu"
            step = torch.zeros((), dtype=torch.float32, device=where)
            self._adamw.state[master] = {"step": step, "exp_avg": first, "exp_avg_sq": second}

    def _grads(self) -> list[Tensor]:
        return [master.grad for master in self.masters.values() if master.grad is not None]

    def _master(self, held: Tensor) -> Tensor:
        shared = self._wire is torch.float32
        return held if shared else held.detach().to(torch.float32, copy=True)

    def _saved(self, name: str, value: Tensor) -> Tensor:
        """What a checkpoint holds of a master or a moment; a count of steps as it is."""
        return self._ranks.whole(value, self._parameters[name]) if value.ndim else value

    @torch.no_grad()
    def _round_into_model(self) -> None:
        for name, held in self._held.items():
            if self.masters[name] is not held:
                for part, master in zip(_parts(held), _parts(self.masters[name]), strict=True):
                    part.copy_(master.to(self._wire))


def _parts(tensor: Tensor) -> Sequence[Tensor]:
    """Views of some rows of a tensor each; on a GPU the tensor, as there calls are what costs."""
    if tensor.ndim == 0 or tensor.device.type != "cpu":
        return [tensor]
    return torch.split(tensor, max(1, _ROUNDED_AT_ONCE * len(tensor) // max(1, tensor.numel())))
