"""Puts a run together: clients, policies, publishers, rollout, from what the setup says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.generation import GenerationClient
from antiphon.clients.reward import RewardClient
from antiphon.clients.transition import TransitionClient
from antiphon.clients.types import FieldError, Phase
from antiphon.learner.agents import Agent
from antiphon.learner.buffer import RolloutBuffer
from antiphon.learner.centralized import CentralizedPrompts, SplitActions
from antiphon.learner.checkpoints import Checkpoints
from antiphon.learner.config import MAGRPOConfig
from antiphon.learner.connect import (
    check_fit,
    largest_incarnation,
    model_infos,
    needs_of,
    smallest_context,
)
from antiphon.learner.control import RunControl
from antiphon.learner.data import CHECK_ALL_UP_TO
from antiphon.learner.early_stop import EarlyStop
from antiphon.learner.limits import Limits
from antiphon.learner.local import LocalServices
from antiphon.learner.plan import joint_actions_per_node
from antiphon.learner.policy import Policy, PolicySettings
from antiphon.learner.prompts import TokenizedPrompts
from antiphon.learner.publisher import AgentPublisher
from antiphon.learner.record import RunRecord
from antiphon.learner.reference import Reference, References, reference_devices
from antiphon.learner.replicas import Replica, RunIdentity
from antiphon.learner.rollout import PromptWriter, Rollout, RolloutShape, misfit
from antiphon.learner.run import TrainingRun
from antiphon.learner.run_folder import RunFolder
from antiphon.learner.run_setup import RunSetup
from antiphon.learner.scoring import OnMainThread, RewardScorer, ServiceTransitions
from antiphon.learner.seeds import completion_seed
from antiphon.learner.stages import StageClock
from antiphon.learner.status import RunStatus
from antiphon.learner.step_plan import most_steps, schedule_notes
from antiphon.learner.updates import Updates


@dataclass(frozen=True)
class RunContext:
    """What every part of a run is told or asks."""

    folder: RunFolder
    record: RunRecord
    status: RunStatus
    control: RunControl
    checkpoints: Checkpoints
    on_main_thread: OnMainThread
    early_stop: EarlyStop | None = None


class Assembly:
    """Connects to the services of a run and puts its parts together.

    Args:
        setup: The run.
        local: Starts what the run brings itself.
        context: What the parts are told and ask.
        stack: Closes clients, threads and policies at the end.
    """

    def __init__(
        self, setup: RunSetup, local: LocalServices, context: RunContext, stack: AsyncExitStack
    ) -> None:
        self._setup = setup
        self._config = setup.config
        self._local = local
        self._context = context
        self._stack = stack
        self._clock = StageClock()
        tokenizers = [agent.tokenizer for agent in setup.agents]
        self._prompts: PromptWriter = (
            TokenizedPrompts(setup.prompts, tokenizers, context.on_main_thread)
            if setup.centralized is None
            else CentralizedPrompts(setup.centralized, tokenizers[0], context.on_main_thread)
        )

    async def training_run(self) -> TrainingRun:
        """The run, with all services up and checked, ready for its first push.

        Raises:
            ChildError: A service that this run started did not come up.
            CallError: A service given by address does not answer.
            FieldError: A service, or a first prompt of the dataset, does not fit the agents.
        """
        setup = self._setup
        replicas = [
            [self._replica(endpoint) for endpoint in endpoints]
            for endpoints in await self._local.generation()
        ]
        services, identity = await self._meet(replicas)
        await self._check_first_prompts([service.context_length for service in services])
        policies = await asyncio.to_thread(policies_of, setup)
        for policy in policies:
            self._stack.callback(policy.restore_dtype)
        for note in schedule_notes(setup):
            self._context.status.note(note)
        references = await asyncio.to_thread(references_of, setup, policies)
        publishers = [
            AgentPublisher(
                identity,
                agents[0],
                policies[number].wire_tensors,
                self._config.tensor_dtype,
                replicas[number],
                timeout=self._config.push_timeout,
            )
            for number, agents in enumerate(setup.policies)
        ]
        generators = [
            Agent(
                identity,
                agents[0],
                replicas[number],
                publishers[number],
                sampling=self._config.sampling,
                context_length=services[number].context_length,
                timeout=self._config.generate_timeout,
                include_full_logprobs=services[number].full_logprobs,
            )
            for number, agents in enumerate(setup.policies)
        ]
        rollout, updates = await self._rollout(generators), self._updates(policies)
        await self._restore(policies, publishers)
        return TrainingRun(
            self._config,
            tasks=setup.tasks,
            rollout=rollout,
            updates=updates,
            publishers=publishers,
            policies=setup.policies,
            references=references,
            record=self._context.record,
            status=self._context.status,
            control=self._context.control,
            checkpoints=self._context.checkpoints,
            clock=self._clock,
            on_main_thread=self._context.on_main_thread,
            limits=Limits(
                policies,
                max_steps=self._config.max_steps,
                early_stop=self._context.early_stop,
            ),
        )

    async def _restore(
        self, policies: Sequence[Policy], publishers: Sequence[AgentPublisher]
    ) -> None:
        """Put these into checkpoints; all parts of a resumed run go on where it left off.

        Comes last: what is made of the models as they were given is made by now.
        """
        checkpoints, status = self._context.checkpoints, self._context.status
        checkpoints.add("policy", policies)
        checkpoints.add("publisher", publishers)
        await checkpoints.restore()
        for policy, agents in zip(policies, self._setup.policies, strict=True):
            for agent in agents:
                status.agents[agent].optimizer_steps = policy.optimizer_steps

    async def _meet(
        self, replicas: Sequence[Sequence[Replica]]
    ) -> tuple[list[_Services], RunIdentity]:
        """Each policy's services, and the run's incarnation, stored before the first push."""
        folder, config = self._context.folder, self._config
        full_logprobs = config.logprob_support == "full"
        services: list[_Services] = []
        found = 0
        for number, agents in enumerate(self._setup.policies):
            agent = self._setup.agents[agents[0]]
            infos = await model_infos(
                replicas[number],
                start_timeout=config.start_timeout,
                timeout=config.control_timeout,
            )
            # A child has the learner's tokenizer.
            tokenizer = agent.tokenizer if self._setup.endpoints(agents) else None
            needs = needs_of(agents[0], agent.model, tokenizer, full_logprobs=full_logprobs)
            for replica, info in zip(replicas[number], infos, strict=True):
                check_fit(info, needs, replica.address)
            offered = all(info.capabilities.full_logprobs for info in infos)
            wanted = full_logprobs or config.reference_kl_enabled
            services.append(_Services(smallest_context(infos, agent.model), offered and wanted))
            found = max(found, largest_incarnation(infos, folder.run_id))
        incarnation = self._context.status.incarnation = folder.next_incarnation(found)
        return services, RunIdentity(folder.run_id, incarnation)

    async def _check_first_prompts(self, contexts: Sequence[int]) -> None:
        """Refuse a dataset with a first prompt that leaves no room for its completion.

        A dataset of unknown length is not read ahead; its long prompts are skipped and counted.
        """
        tasks = self._setup.tasks
        if tasks.length is None:
            return
        context_of = {
            agent: context
            for agents, context in zip(self._setup.policies, contexts, strict=True)
            for agent in agents
        }
        for row in islice(tasks.epoch(), CHECK_ALL_UP_TO):
            for agent, prompt in enumerate(await self._prompts.first(row.task)):
                tokens, most = len(prompt.token_ids), self._config.max_new_tokens
                if detail := misfit(agent, tokens, most, context_of[agent]):
                    raise FieldError(
                        f"{tasks.name}[{row.row}]",
                        detail,
                        "shorter prompts, or a smaller max_new_tokens",
                    )

    def _updates(self, policies: Sequence[Policy]) -> Updates:
        config = self._config
        buffers = [
            RolloutBuffer(
                agents[0],
                config.rollout_buffer_size,
                config.train_batch_size,
                config.seed,
                agents=agents,
            )
            for agents in self._setup.policies
        ]
        self._context.checkpoints.add("buffer", buffers)
        updates = Updates(
            buffers,
            policies,
            threads=self._setup.threads,
            accumulated=config.gradient_accumulation_steps,
            max_steps=config.max_steps,
        )
        self._stack.push_async_callback(asyncio.to_thread, updates.close)
        return updates

    async def _rollout(self, generators: Sequence[Agent]) -> Rollout:
        config, record = self._config, self._context.record
        return Rollout(
            RolloutShape(
                self._setup.num_agents,
                config.num_generations,
                config.num_turns,
                config.joint_mode,
                config.early_termination_threshold,
                config.max_new_tokens,
                self._setup.policies,
            ),
            generators=generators,
            scorer=self._scorer(await self._local.reward()),
            transitioner=self._transitioner(await self._local.transition()),
            prompts=self._prompts,
            seed_of=partial(completion_seed, config.seed, Phase.TRAIN),
            clock=self._clock,
            on_turn=lambda epoch, turn, text: record.working_on(
                "generate", epoch=epoch, prompt=text, turn=turn
            ),
            actions=None
            if self._setup.centralized is None
            else SplitActions(self._setup.centralized, self._context.on_main_thread),
        )

    def _scorer(self, reward: Endpoint) -> RewardScorer:
        client = RewardClient(reward, retry=self._config.retry)
        self._stack.push_async_callback(client.close)
        return RewardScorer(
            client,
            run_id=self._context.folder.run_id,
            timeout=self._deadline(self._config.score_timeout, self._setup.reward),
            failures_are_missing=self._config.on_score_failure == "missing",
            processor=self._setup.reward_processor,
            on_main_thread=self._context.on_main_thread,
        )

    def _transitioner(self, transition: Endpoint | None) -> ServiceTransitions | None:
        if transition is None:
            return None
        client = TransitionClient(transition, retry=self._config.retry)
        self._stack.push_async_callback(client.close)
        return ServiceTransitions(
            client,
            run_id=self._context.folder.run_id,
            num_agents=self._setup.num_roles,
            timeout=self._deadline(self._config.transition_timeout, self._setup.transition),
        )

    def _deadline(self, timeout: float, given: Callable[..., Any] | Endpoint | None) -> float:
        """The deadline of a call.

        Functions of this process take turns on its main thread, where each call of them has
        `timeout`; the deadline of the RPC around it lets those of a node before it end.
        """
        if isinstance(given, Endpoint):
            return timeout
        turns = joint_actions_per_node(self._config, self._setup.num_agents) + 1
        return (self._config.score_timeout + self._config.transition_timeout) * turns

    def _replica(self, endpoint: Endpoint) -> Replica:
        client = GenerationClient(endpoint, retry=self._config.retry)
        self._stack.push_async_callback(client.close)
        return Replica(endpoint.address, client)


@dataclass(frozen=True)
class _Services:
    """What a policy's services have in common.

    `context_length` is that of the smallest, `full_logprobs` says whether they are asked for
    log-probabilities under the full softmax too.
    """

    context_length: int
    full_logprobs: bool


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
        [Reference(policy.model, devices[policy.agent], policy.wire_dtype) for policy in policies],
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
    )
