"""Settings of MAGRPO's relatives, by the names that people know from CoMLRL.

All follow MAGRPO (arXiv 2508.04652) but for the advantage of a completion with return R among the
n of its group (`antiphon.learner.arithmetic.advantages`):

    MAGRPO        A = R - mean(R)                        advantage_mode "mean"
    MARLOO        A = R - mean of the other n - 1        "rloo", leave-one-out (arXiv 2402.14740)
    MAReMax       A = R - max(R)                         "max"
    MAREINFORCE   A = R                                  "raw", REINFORCE without a baseline

With one agent MAGRPO is GRPO (arXiv 2402.03300) over the turns of a task, MARLOO is RLOO.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from antiphon.learner.config.magrpo import MAGRPOConfig


class MARLOOConfig(MAGRPOConfig):
    """Settings of MARLOO: MAGRPO's, with the mean of the group's other returns as baseline.

    A = R - (sum(R) - R) / (n - 1) = (n R - sum(R)) / (n - 1)
    """

    advantage_mode: Literal["rloo"] = "rloo"
    """The baseline: the mean of the group's other returns."""


class MAReMaxConfig(MAGRPOConfig):
    """Settings of MAReMax: MAGRPO's, with the group's largest return as baseline.

    A = R - max(R)
    """

    advantage_mode: Literal["max"] = "max"
    """The baseline: the group's largest return."""


class MAREINFORCEConfig(MAGRPOConfig):
    """Settings of MAREINFORCE: MAGRPO's, without a baseline.

    A = R
    """

    advantage_mode: Literal["raw"] = "raw"
    """No baseline: the return itself."""


class CentralizedMAGRPOConfig(MAGRPOConfig):
    """Settings of centralised MAGRPO: one model writes the joint answer of `num_agents` roles.

    The group is the model's completions of one joint prompt, so it is GRPO with the joint return;
    an adapter splits each completion for reward and transition
    (`antiphon.learner.rollout.centralized`).
    """

    num_turns: int = Field(default=1, ge=1)
    """Turns per task, T; above 1 a transition writes the roles' next prompts."""
    collaboration_mode: Literal["centralized"] = "centralized"
    """CoMLRL's switch; only ``"centralized"`` is offered here."""
