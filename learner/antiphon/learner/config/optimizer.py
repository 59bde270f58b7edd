"""How an optimiser steps. Needs no torch, so that settings can be read without it."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.learner.policy.schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """How an optimiser steps; defaults of AdamW are torch's. `max_grad_norm` None is off."""

    learning_rate: float = 5e-6
    betas: tuple[float, float] = (0.9, 0.999)
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.01
    decay_norms_and_biases: bool = True
    max_grad_norm: float | None = None
    schedule: Schedule = field(default_factory=Schedule)
