"""How many optimiser steps a run can take at most, and what learning rates make of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.policy.schedules import Schedule, ScheduleType
from antiphon.learner.rollout.size import most_optimizer_steps
from antiphon.learner.run.setup import RunSetup


def most_steps(setup: RunSetup, agents: Sequence[int]) -> int | None:
    """The most optimiser steps of a policy; None where the dataset does not know its length.

    Args:
        setup: The run.
        agents: The agents that the policy plays.
    """
    if setup.tasks.length is None:
        return None
    return most_optimizer_steps(
        setup.config, setup.num_agents, setup.tasks.length, sharing=len(agents)
    )


def schedule_notes(setup: RunSetup) -> list[str]:
    """A line for each policy whose learning rate changes with its steps."""
    length = setup.tasks.length
    return notes_of(setup.config, setup.num_agents, length, setup.learning_rate)


def notes_of(
    config: MAGRPOConfig,
    num_agents: int,
    num_prompts: int | None,
    learning_rate: Callable[[int], float],
) -> list[str]:
    """`schedule_notes` from the settings.

    Args:
        config: The settings.
        num_agents: Number of agents, N.
        num_prompts: Rows of the dataset, None where unknown.
        learning_rate: That of an agent.

    Raises:
        FieldError: A schedule does not fit the steps of the run.
    """
    notes = []
    for agent, *others in config.policies(num_agents):
        most = None
        if num_prompts is not None:
            sharing = 1 + len(others)
            most = most_optimizer_steps(config, num_agents, num_prompts, sharing=sharing)
        if not config.is_trainable(agent):
            continue
        rate = learning_rate(agent)
        schedule = config.optimizer_settings(agent, rate, most).schedule
        if text := _told(schedule, estimated=config.lr_total_steps is None):
            notes.append(f"agent {agent}: learning rate {rate:g}, {text}")
    return notes


def _told(schedule: Schedule, *, estimated: bool) -> str:
    parts = []
    if schedule.warmup_steps:
        parts.append(f"{schedule.warmup_steps} steps of warm-up")
    if schedule.type != ScheduleType.CONSTANT:
        why = (
            " (the most that this run can take; early ends and dead groups make it fewer, "
            "lr_total_steps sets another number)"
        )
        parts.append(
            f"{schedule.type} over {schedule.total_steps} optimiser steps{why if estimated else ''}"
        )
    return ", ".join(parts)
