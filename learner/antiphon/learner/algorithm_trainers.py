"""Trainers of MAGRPO's relatives; what each computes is in `antiphon.learner.config.algorithms`."""

from __future__ import annotations

from antiphon.learner.config.algorithms import (
    CentralizedMAGRPOConfig,
    MAREINFORCEConfig,
    MAReMaxConfig,
    MARLOOConfig,
)
from antiphon.learner.trainer import MAGRPOTrainer


class MARLOOTrainer(MAGRPOTrainer):
    """`MAGRPOTrainer` with the mean of the group's other returns as baseline.

    A = (n R - sum(R)) / (n - 1)        `advantage_mode` "rloo"
    """

    config_class = MARLOOConfig


class MAReMaxTrainer(MAGRPOTrainer):
    """`MAGRPOTrainer` with the group's largest return as baseline.

    A = R - max(R)        `advantage_mode` "max"
    """

    config_class = MAReMaxConfig


class MAREINFORCETrainer(MAGRPOTrainer):
    """`MAGRPOTrainer` without a baseline.

    A = R        `advantage_mode` "raw"
    """

    config_class = MAREINFORCEConfig


class CentralizedMAGRPOTrainer(MAGRPOTrainer):
    """`MAGRPOTrainer` of one model that writes the joint answer of several roles.

    It takes what `MAGRPOTrainer` takes, by keyword, and needs a `centralized_adapter`; `num_agents`
    counts the roles. `reward_func`, `external_transition` and `formatters` are those of as many
    agents and see the roles' texts, never the joint one.

    Example:
        ::

            trainer = CentralizedMAGRPOTrainer(
                agents=[model],
                tokenizer=tokenizer,
                num_agents=2,
                centralized_adapter=TaggedAdapter(),
                reward_func=lambda a, b: [float(len(b[0]) > len(a[0]))],
                train_dataset=[{"prompt": "Write a story:"}],
                args=CentralizedMAGRPOConfig(num_train_epochs=1),
            )
    """

    config_class = CentralizedMAGRPOConfig
    centralized = True
