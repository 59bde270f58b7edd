"""The learner: grows rollouts, trains the agents' policies and publishes their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.learner.config import MAGRPOConfig as MAGRPOConfig
    from antiphon.learner.trainer import MAGRPOTrainer as MAGRPOTrainer

__all__ = ["MAGRPOConfig", "MAGRPOTrainer"]


def __getattr__(name: str) -> Any:
    """Load the trainer, and torch with it, only where somebody asks for it."""
    if name == "MAGRPOConfig":
        from antiphon.learner.config import MAGRPOConfig

        return MAGRPOConfig
    if name == "MAGRPOTrainer":
        from antiphon.learner.trainer import MAGRPOTrainer

        return MAGRPOTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
