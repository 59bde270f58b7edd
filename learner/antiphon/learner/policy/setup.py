"""The policies of a run and their references, as its config says."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.policy.policy import Policy, PolicySettings
from antiphon.learner.policy.reference import Reference, References, reference_devices
from antiphon.learner.policy.step_plan import most_steps
from antiphon.learner.run.setup import RunSetup


def policies_of(setup: RunSetup) -> list[Policy]:
    """The policies, from the models as they are. A shared one goes by its first agent."""
    return [
        Policy(
            agents[0],
            setup.agents[agents[0]].model,
            policy_settings(
                setup.config, agents[0], setup.learning_rate(agents[0]), most_steps(setup, agents)
            ),
            wire_dtype=setup.config.tensor_dtype,
        )
        for agents in setup.policies
    ]


def references_of(setup: RunSetup, policies: Sequence[Policy]) -> References | None:
    """The reference of every policy, its weights as they are now; None where no KL is wanted."""
    config = setup.config
    if not config.reference_kl_enabled:
        return None
    devices = reference_devices(config, setup.num_agents)
    return References(
        policies,
        [
            Reference(policy.agent, policy.model, devices[policy.agent], policy.wire_dtype)
            for policy in policies
        ],
        setup.policies,
        tokens=policies[0].settings.micro_batch_tokens,
        size=config.micro_batch_size,
    )


def policy_settings(
    config: MAGRPOConfig, agent: int, learning_rate: float, most_steps: int | None
) -> PolicySettings:
    """How the config says that an agent's policy is trained.

    Args:
        config: The settings.
        agent: Counted from 0.
        learning_rate: The agent's own.
        most_steps: The most optimiser steps that it can take in this run; None where unknown.
    """
    return PolicySettings(
        **vars(config.optimizer_settings(agent, learning_rate, most_steps)),
        temperature=config.temperature,
        max_new_tokens=config.max_new_tokens,
        clip_ratio_low=config.clip_ratio_low,
        clip_ratio_high=config.clip_ratio_high,
        importance_ratio=config.importance_ratio,
        loss_normalization=config.loss_normalization,
        logprob_support=config.logprob_support,
        max_staleness=config.max_staleness,
        micro_batch_size=config.micro_batch_size,
        reference_kl_coef=config.loss_kl_coef,
        activation_checkpointing=config.activation_checkpointing,
        trainable=config.is_trainable(agent),
        compute_dtype=config.compute_dtype,
    )
