"""The learner: grows rollouts, trains the agents' policies and publishes their weights."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.learner.algorithm_trainers import (
        CentralizedMAGRPOTrainer as CentralizedMAGRPOTrainer,
    )
    from antiphon.learner.algorithm_trainers import MAREINFORCETrainer as MAREINFORCETrainer
    from antiphon.learner.algorithm_trainers import MAReMaxTrainer as MAReMaxTrainer
    from antiphon.learner.algorithm_trainers import MARLOOTrainer as MARLOOTrainer
    from antiphon.learner.config.algorithms import (
        CentralizedMAGRPOConfig as CentralizedMAGRPOConfig,
    )
    from antiphon.learner.config.algorithms import MAREINFORCEConfig as MAREINFORCEConfig
    from antiphon.learner.config.algorithms import MAReMaxConfig as MAReMaxConfig
    from antiphon.learner.config.algorithms import MARLOOConfig as MARLOOConfig
    from antiphon.learner.config.magrpo import MAGRPOConfig as MAGRPOConfig
    from antiphon.learner.rollout.centralized import CentralizedParseError as CentralizedParseError
    from antiphon.learner.rollout.centralized import TaggedAdapter as TaggedAdapter
    from antiphon.learner.run.nursery import warm_up as warm_up
    from antiphon.learner.trainer import MAGRPOTrainer as MAGRPOTrainer

_MODULES = {
    "CentralizedMAGRPOConfig": "config.algorithms",
    "CentralizedMAGRPOTrainer": "algorithm_trainers",
    "CentralizedParseError": "rollout.centralized",
    "MAGRPOConfig": "config.magrpo",
    "MAGRPOTrainer": "trainer",
    "MAREINFORCEConfig": "config.algorithms",
    "MAREINFORCETrainer": "algorithm_trainers",
    "MAReMaxConfig": "config.algorithms",
    "MAReMaxTrainer": "algorithm_trainers",
    "MARLOOConfig": "config.algorithms",
    "MARLOOTrainer": "algorithm_trainers",
    "TaggedAdapter": "rollout.centralized",
    "warm_up": "run.nursery",
}

__all__ = [
    "CentralizedMAGRPOConfig",
    "CentralizedMAGRPOTrainer",
    "CentralizedParseError",
    "MAGRPOConfig",
    "MAGRPOTrainer",
    "MAREINFORCEConfig",
    "MAREINFORCETrainer",
    "MARLOOConfig",
    "MARLOOTrainer",
    "MAReMaxConfig",
    "MAReMaxTrainer",
    "TaggedAdapter",
    "warm_up",
]


def __getattr__(name: str) -> Any:
    """Load the trainers, and torch with them, only where somebody asks for them."""
    if name in _MODULES:
        return getattr(import_module(f"antiphon.learner.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
