"""Who scores joint actions and who writes later prompts, with the deadlines of their calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.reward import RewardClient
from antiphon.clients.transition import TransitionClient
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.local import LocalServices
from antiphon.learner.rollout.scoring import OnMainThread, RewardScorer, ServiceTransitions
from antiphon.learner.rollout.size import joint_actions_per_node
from antiphon.learner.run.setup import RunSetup
from antiphon.learner.start_wait import started


@dataclass(frozen=True)
class Judges:
    """Who scores, and who writes later prompts (None where nobody does)."""

    scorer: RewardScorer
    transitioner: ServiceTransitions | None


async def open_judges(
    setup: RunSetup,
    local: LocalServices,
    run_id: str,
    on_main_thread: OnMainThread,
    stack: AsyncExitStack,
) -> Judges:
    """Connect to the reward and transition services, given or served here.

    Those that are given are waited for, so that a run does not sample for nobody.

    Args:
        setup: The run.
        local: Serves what the run brings itself.
        run_id: The run that asks.
        on_main_thread: Runs the reward processor.
        stack: Closes the clients at the end.

    Raises:
        CallError: A service that is given has not answered within `start_timeout`, or refuses.
        FieldError: Another service answers there.
    """
    config = setup.config
    reward = RewardClient(await local.reward(), retry=config.retry)
    stack.push_async_callback(reward.close)
    if isinstance(setup.reward, Endpoint):
        await _reached(reward, config)
    scorer = RewardScorer(
        reward,
        run_id=run_id,
        timeout=_deadline(setup, config.score_timeout, setup.reward),
        failures_are_missing=config.on_score_failure == "missing",
        drop_missing=config.on_missing_score == "drop",
        one_at_a_time=not isinstance(setup.reward, Endpoint),
        processor=setup.reward_processor,
        on_main_thread=on_main_thread,
    )
    endpoint = await local.transition()
    if endpoint is None:
        return Judges(scorer, None)
    transition = TransitionClient(endpoint, retry=config.retry)
    stack.push_async_callback(transition.close)
    if isinstance(setup.transition, Endpoint):
        await _reached(transition, config)
    transitioner = ServiceTransitions(
        transition,
        run_id=run_id,
        num_agents=setup.num_roles,
        timeout=_deadline(setup, config.transition_timeout, setup.transition),
    )
    return Judges(scorer, transitioner)


async def _reached(client: RewardClient | TransitionClient, config: MAGRPOConfig) -> None:
    """Returns once a service can be called; its health may say what it likes."""
    timeout = config.control_timeout
    check = partial(client.check, timeout)
    await started(client, check, start_timeout=config.start_timeout, timeout=timeout)


def _deadline(
    setup: RunSetup, timeout: float, given: Callable[..., Any] | Endpoint | None
) -> float:
    """The deadline of a call.

    Functions of this process take turns on its main thread, where each call of them has
    `timeout`; the deadline of the RPC around it lets those of a node before it end.
    """
    if isinstance(given, Endpoint):
        return timeout
    config = setup.config
    turns = joint_actions_per_node(config, setup.num_agents) + 1
    return (config.score_timeout + config.transition_timeout) * turns
