"""How policies are laid over the processes that torchrun starts. Needs no torch."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Placement(StrEnum):
    """Which ranks hold a policy.

    `shared` parts every policy over all ranks; their updates follow one another. `per-agent` gives
    each policy ranks of its own; their updates run side by side.
    """

    SHARED = "shared"
    PER_AGENT = "per-agent"


class ShardingSettings(BaseModel):
    """`[sharding]`: how a run that torchrun starts in several processes lays out its policies."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    placement: Placement = Placement.SHARED
    """``"shared"`` parts every agent's policy over all ranks; ``"per-agent"`` gives each ranks of
    its own, so that updates run side by side."""
    offload: bool = False
    """Hold the parts of models and optimisers in main memory, and only what computes on the GPU."""
