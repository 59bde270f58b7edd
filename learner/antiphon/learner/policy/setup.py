"""The policies of a run and their references, as its config says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.policy.devices import OFFLOAD
from antiphon.learner.policy.policy import Policy, PolicySettings, is_small
from antiphon.learner.policy.reference import (
    FrozenReference,
    Reference,
    References,
    reference_devices,
)
from antiphon.learner.policy.step_plan import most_steps
from antiphon.learner.run.setup import RunSetup

if TYPE_CHECKING:
    from antiphon.learner.distributed.leader import ShardedPolicy

TrainedPolicy: TypeAlias = "Policy | ShardedPolicy"
"""A policy in training: held by this process, or by many ranks; used alike."""


def policies_of(setup: RunSetup) -> list[TrainedPolicy]:
    """The policies, from the models as they are. A shared one goes by its first agent."""
    return [_policy(setup, agents) for agents in setup.policies]


def _policy(setup: RunSetup, agents: Sequence[int]) -> TrainedPolicy:
    first, wire = agents[0], setup.config.tensor_dtype
    settings = policy_settings(
        setup.config, first, setup.learning_rate(first), most_steps(setup, agents)
    )
    if setup.ranks is not None:
        return setup.ranks.policy(first, settings, wire_dtype=wire)
    return Policy(first, setup.agents[first].model, settings, wire_dtype=wire)


def update_threads(setup: RunSetup) -> tuple[int, int]:
    """How many policies are updated at once, and the threads of each.

    Small ones take turns, as they would mostly wait for each other's Python. Policies on ranks of
    their own compute at once however few threads this process has: it computes one of them, and
    waits for the ranks of the others.
    """
    policies = len(setup.policies)
    if setup.ranks is not None:
        threads = max(1, setup.threads // setup.ranks.ranks_here)
        return (policies if setup.ranks.side_by_side else 1), threads
    if all(is_small(agent.model) for agent in setup.agents):
        return 1, 1
    at_once = min(policies, max(1, setup.threads))
    return at_once, max(1, setup.threads // at_once)


def references_of(setup: RunSetup, policies: Sequence[TrainedPolicy]) -> References | None:
    """The reference of every policy, its weights as they are now; None where no KL is wanted."""
    config = setup.config
    if not config.reference_kl_enabled:
        return None
    devices = reference_devices(config, setup.num_agents)
    return References(
        policies,
        [_reference(policy, devices[policy.agent]) for policy in policies],
        setup.policies,
        tokens=policies[0].settings.micro_batch_tokens,
        size=config.micro_batch_size,
    )


def _reference(policy: TrainedPolicy, device: str | None) -> FrozenReference:
    if isinstance(policy, Policy):
        return Reference(policy.agent, policy.model, device, policy.wire_dtype)
    return policy.reference(offload=device == OFFLOAD)


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
