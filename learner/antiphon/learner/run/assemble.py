"""Puts a run together: clients, policies, publishers, rollout, from what the setup says."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from antiphon.clients.types import Phase, SamplingParameters
from antiphon.learner.arithmetic.buffer import RolloutBuffer
from antiphon.learner.concurrency import task_group
from antiphon.learner.data.tasks import CHECK_ALL_UP_TO
from antiphon.learner.evaluation.best_models import BestModels
from antiphon.learner.evaluation.evaluation import Evaluator, evaluation_sampling, evaluation_shape
from antiphon.learner.evaluation.plan import Evaluations
from antiphon.learner.local import LocalServices
from antiphon.learner.policy.adapters import sent_tensors
from antiphon.learner.policy.setup import TrainedPolicy, policies_of, references_of, update_threads
from antiphon.learner.policy.step_plan import schedule_notes
from antiphon.learner.policy.updates import Updates
from antiphon.learner.record.stages import StageClock
from antiphon.learner.rollout.agents import Agent
from antiphon.learner.rollout.centralized import CentralizedPrompts, SplitActions
from antiphon.learner.rollout.judges import Judges, open_judges
from antiphon.learner.rollout.prompt_encoding import prompt_encoders
from antiphon.learner.rollout.prompts import TokenizedPrompts
from antiphon.learner.rollout.rollout import PromptWriter, Rollout, RolloutShape
from antiphon.learner.rollout.seeds import completion_seed
from antiphon.learner.run.connections import Connections
from antiphon.learner.run.context import RunContext
from antiphon.learner.run.dead_streak import DeadStreak
from antiphon.learner.run.limits import Limits
from antiphon.learner.run.loop import TrainingRun
from antiphon.learner.run.setup import RunSetup, save_policies
from antiphon.learner.weights.connect import (
    Terms,
)
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import Replicas, RunIdentity
from antiphon.learner.weights.wire_weights import OwnWeights
from antiphon.services.common.allocator import reuse_blocks_of_a_step
from antiphon.services.common.models import context_length
from antiphon.services.common.weights_store import WeightsStore


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
        encoders = prompt_encoders(
            self._config,
            [agent.tokenizer for agent in setup.agents],
            [context_length(agent.model.config) for agent in setup.agents],
        )
        self._prompts: PromptWriter = (
            TokenizedPrompts(setup.prompts, encoders, context.on_main_thread)
            if setup.centralized is None
            else CentralizedPrompts(setup.centralized, encoders[0], context.on_main_thread)
        )

    async def training_run(self) -> TrainingRun:
        """The run, with all services up and checked, ready for its first push.

        Raises:
            ChildError: A service that this run started did not come up.
            CallError: A service given by address does not answer.
            FieldError: A service, or a first prompt of the dataset, does not fit the agents.
        """
        setup, config = self._setup, self._config
        connections = await self._connections()
        judges = await self._judges()
        replicas, services, identity = await connections.open()
        await connections.check_first_prompts(setup.tasks, services, CHECK_ALL_UP_TO)
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
                policies[number].wire_weights(),
                replicas[number],
                timeout=config.push_timeout,
                deltas=config.delta_pushes,
                store=self._weights_store(),
            )
            for number, agents in enumerate(setup.policies)
        ]
        for publisher in publishers:
            self._stack.push_async_callback(publisher.close)
        served = _Served(identity, replicas, services, publishers)
        rollout = self._rollout(served, judges)
        evaluations = self._evaluations(served, judges)
        updates = self._updates(policies)
        if references is not None:
            self._context.checkpoints.add("reference", references.references)
        dead_streak = DeadStreak(self._config.dead_groups_limit)
        self._context.checkpoints.add("dead_groups", [dead_streak])
        await self._restore(policies, publishers)
        connections.follow(replicas, services, publishers)
        # What is here by now stays: a collection need not look at all of it, for a tenth of a
        # second each time, while every replica waits.
        gc.freeze()
        self._stack.callback(gc.unfreeze)
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
                dead_streak=dead_streak,
            ),
            evaluations=evaluations,
        )

    async def evaluator(self) -> Evaluator:
        """What evaluates the models as they are, which every service has when this returns.

        Raises:
            ChildError, CallError, FieldError: As `training_run`.
        """
        setup, config = self._setup, self._config
        connections = await self._connections()
        judges = await self._judges()
        replicas, services, identity = await connections.open()
        publishers = [
            AgentPublisher(
                identity,
                agents[0],
                OwnWeights(
                    partial(sent_tensors, setup.agents[agents[0]].model), config.tensor_dtype
                ),
                replicas[number],
                timeout=config.push_timeout,
                deltas=False,
                store=self._weights_store(),
            )
            for number, agents in enumerate(setup.policies)
        ]
        async with task_group() as group:
            for publisher in publishers:
                group.create_task(publisher.publish())
        served = _Served(identity, replicas, services, publishers)
        connections.follow(replicas, services, publishers)
        evaluator = self._evaluator(served, judges)
        assert evaluator is not None  # the trainer has an evaluation dataset
        return evaluator

    async def _connections(self) -> Connections:
        endpoints = await self._local.generation()
        return Connections(self._setup, endpoints, self._context, self._prompts, self._stack)

    def _weights_store(self) -> WeightsStore | None:
        url = self._config.weights_store
        if url is None:
            return None
        store = WeightsStore(url)
        store.create()
        return store

    async def _restore(
        self, policies: Sequence[TrainedPolicy], publishers: Sequence[AgentPublisher]
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

    def _updates(self, policies: Sequence[TrainedPolicy]) -> Updates:
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
        if self._setup.ranks is None:  # Ranks have set their own way when they met.
            reuse_blocks_of_a_step()
        at_once, threads = update_threads(self._setup)
        updates = Updates(
            buffers,
            policies,
            at_once=at_once,
            threads=threads,
            accumulated=config.gradient_accumulation_steps,
            max_steps=config.max_steps,
        )
        self._stack.push_async_callback(asyncio.to_thread, updates.close)
        return updates

    def _rollout(self, served: _Served, judges: Judges) -> Rollout:
        """Grows the trees to train on."""
        config, record = self._config, self._context.record
        shape = RolloutShape(
            self._setup.num_agents,
            config.num_generations,
            config.num_turns,
            config.joint_mode,
            config.early_termination_threshold,
            config.max_new_tokens,
            self._setup.policies,
        )
        return Rollout(
            shape,
            generators=[
                self._agent(
                    served, number, config.sampling, full=served.services[number].full_logprobs
                )
                for number in range(len(self._setup.policies))
            ],
            scorer=judges.scorer,
            transitioner=judges.transitioner,
            prompts=self._prompts,
            seed_of=partial(completion_seed, config.seed, Phase.TRAIN),
            clock=self._clock,
            on_turn=lambda _, turn, text: record.sampling(prompt=text, turn=turn),
            actions=self._split_actions(),
            as_text=served.as_text,
        )

    def _evaluator(self, served: _Served, judges: Judges) -> Evaluator | None:
        """Evaluates; its time is on a clock of its own."""
        setup, config, record = self._setup, self._config, self._context.record
        if setup.evaluation is None:
            return None
        rollout = Rollout(
            evaluation_shape(config, setup.num_agents, setup.policies),
            generators=[
                self._agent(served, number, evaluation_sampling(config), full=False)
                for number in range(len(setup.policies))
            ],
            scorer=judges.scorer,
            transitioner=judges.transitioner,
            prompts=self._prompts,
            seed_of=partial(completion_seed, config.seed, Phase.EVAL),
            clock=StageClock(),
            on_turn=lambda _, turn, text: record.working_on(
                "evaluating", epoch=record.epoch, prompt=text, turn=turn
            ),
            phase=Phase.EVAL,
            actions=self._split_actions(),
            as_text=served.as_text,
        )
        return Evaluator(
            config,
            tasks=setup.evaluation.tasks,
            rollout=rollout,
            on_main_thread=self._context.on_main_thread,
            functions=setup.evaluation.functions,
        )

    def _evaluations(self, served: _Served, judges: Judges) -> Evaluations | None:
        """The evaluations of a run in training, a part of its checkpoints."""
        config, context = self._config, self._context
        evaluator = self._evaluator(served, judges)
        if evaluator is None:
            return None
        best = None
        if config.best_metric is not None:
            best = BestModels(
                context.folder.path,
                metric=config.best_metric,
                mode=config.best_mode,
                save=partial(save_policies, self._setup),
            )
        evaluations = Evaluations(
            config,
            evaluator,
            record=context.record,
            status=context.status,
            control=context.control,
            checkpoints=context.checkpoints,
            best=best,
        )
        context.checkpoints.add("evaluations", [evaluations])
        return evaluations

    def _agent(
        self, served: _Served, number: int, sampling: SamplingParameters, *, full: bool
    ) -> Agent:
        """Samples a policy; `full` asks for log-probabilities of the full softmax too."""
        return Agent(
            served.identity,
            self._setup.policies[number][0],
            served.replicas[number],
            served.publishers[number],
            sampling=sampling,
            context_length=served.services[number].room(self._config.max_new_tokens),
            timeout=self._config.generate_timeout,
            include_full_logprobs=full,
            retry=self._config.retry,
            repeats_whole=self._config.max_staleness == 0,
        )

    def _split_actions(self) -> SplitActions | None:
        centralized = self._setup.centralized
        if centralized is None:
            return None
        return SplitActions(centralized, self._context.on_main_thread)

    async def _judges(self) -> Judges:
        context = self._context
        run_id, on_main_thread = context.folder.run_id, context.on_main_thread
        return await open_judges(self._setup, self._local, run_id, on_main_thread, self._stack)


@dataclass(frozen=True)
class _Served:
    """The policies as they are served, policy 0 first in every list."""

    identity: RunIdentity
    replicas: Sequence[Replicas]
    services: Sequence[Terms]
    publishers: Sequence[AgentPublisher]

    @property
    def as_text(self) -> set[int]:
        """Policies whose prompts are sent as text."""
        return {number for number, one in enumerate(self.services) if not one.token_ids}
