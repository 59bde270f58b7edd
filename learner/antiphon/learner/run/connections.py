"""Meets the generation services of a run: who is there, whether they fit, who comes and goes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.generation import GenerationClient
from antiphon.clients.names import is_name
from antiphon.clients.types import FieldError
from antiphon.learner.checkpoints.random_state import kept_generators
from antiphon.learner.data.tasks import CHECK_ALL_UP_TO, Row, Tasks
from antiphon.learner.rollout.rollout import PromptWriter
from antiphon.learner.run.context import RunContext
from antiphon.learner.run.setup import RunSetup
from antiphon.learner.weights.connect import (
    Terms,
    admit,
    agreed,
    answering,
    largest_incarnation,
    needs_in_run,
)
from antiphon.learner.weights.lease import LeaseWait
from antiphon.learner.weights.membership import Membership, is_elastic, resolve_all
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import Replica, Replicas, RunIdentity


class Connections:
    """The generation services of a run: found, checked, and followed until it ends.

    Args:
        setup: The run.
        endpoints: Where each policy is served.
        context: What the run's parts are told and ask.
        prompts: Writes the first prompts, which must fit the services.
        stack: Closes clients at the end.
    """

    def __init__(
        self,
        setup: RunSetup,
        endpoints: Sequence[Sequence[Endpoint]],
        context: RunContext,
        prompts: PromptWriter,
        stack: AsyncExitStack,
    ) -> None:
        self._setup = setup
        self._config = setup.config
        self._endpoints = endpoints
        self._context = context
        self._prompts = prompts
        self._stack = stack

    async def open(self) -> tuple[list[Replicas], list[Terms], RunIdentity]:
        """Each policy's replicas and what they have in common; prompts to evaluate on fit them.

        Raises:
            CallError: A service does not answer.
            FieldError: A service, or a first prompt to evaluate on, does not fit the agents.
        """
        replicas = [
            await self._replicas(agents, endpoints)
            for agents, endpoints in zip(self._setup.policies, self._endpoints, strict=True)
        ]
        services, identity = await self._meet(replicas)
        evaluation = self._setup.evaluation
        if evaluation is not None:
            with kept_generators():
                await self.check_first_prompts(
                    evaluation.tasks, services, self._config.eval_num_samples
                )
        return replicas, services, identity

    async def check_first_prompts(
        self, tasks: Tasks, services: Sequence[Terms], most_rows: int
    ) -> None:
        """Refuse a dataset with a first prompt that leaves no room for its completion.

        Of a dataset of unknown length one prompt is written, as a trial; those that turn out too
        long are skipped and counted.
        """
        known = tasks.length is not None
        count = min(most_rows, CHECK_ALL_UP_TO if known else 1)
        rows: list[Row] = await self._context.on_main_thread(
            lambda: list(islice(tasks.epoch(), count)), tasks.name
        )
        terms_of = {
            agent: service
            for agents, service in zip(self._setup.policies, services, strict=True)
            for agent in agents
        }
        for row in rows:
            for agent, prompt in enumerate(await self._prompts.first(row.task)):
                tokens, most = len(prompt.token_ids), self._config.max_new_tokens
                detail = terms_of[agent].misfit(agent, tokens, most)
                if known and detail:
                    raise FieldError(
                        f"{tasks.name}[{row.row}]",
                        detail,
                        "shorter prompts, a smaller max_new_tokens, or services that take more",
                    )

    def follow(
        self,
        replicas: Sequence[Replicas],
        services: Sequence[Terms],
        publishers: Sequence[AgentPublisher],
    ) -> None:
        """Follow the services given by address, which may come and go, until the run ends."""
        config = self._config
        for endpoints, own, terms, publisher in zip(
            self._endpoints, replicas, services, publishers, strict=True
        ):
            if own.patience is not None:
                Membership(
                    endpoints,
                    own,
                    publisher,
                    connect=self._replica,
                    admit=partial(admit, terms=terms, timeout=config.control_timeout),
                    every=config.resolve_interval,
                    timeout=config.control_timeout,
                ).start(self._stack)

    async def _replicas(self, agents: Sequence[int], endpoints: Sequence[Endpoint]) -> Replicas:
        """Who is behind these addresses and names; the end of one's own service ends the run."""
        config, note = self._config, self._context.status.note
        found = await resolve_all(
            endpoints, timeout=config.control_timeout, start_timeout=config.start_timeout
        )
        return Replicas(
            map(self._replica, found),
            agent=agents[0],
            patience=config.replicas_timeout if self._setup.endpoints(agents) else None,
            grow=is_elastic(endpoints),
            lease=LeaseWait(agents[0], longest=config.start_timeout, note=note),
            note=note,
        )

    async def _meet(self, replicas: Sequence[Replicas]) -> tuple[list[Terms], RunIdentity]:
        """Each policy's services, and the run's incarnation, stored before the first push."""
        folder, config = self._context.folder, self._config
        services: list[Terms] = []
        found = 0
        for number, agents in enumerate(self._setup.policies):
            agent = self._setup.agents[agents[0]]
            infos = await answering(
                replicas[number],
                all_of_them=not any(map(is_name, self._endpoints[number])),
                start_timeout=config.start_timeout,
                timeout=config.control_timeout,
            )
            # A child has the learner's tokenizer.
            tokenizer = agent.tokenizer if self._setup.endpoints(agents) else None
            needs = needs_in_run(config, agents[0], agent.model, tokenizer)
            wanted = needs.full_logprobs or config.reference_kl_enabled
            services.append(agreed(infos, needs, agent.model, full_logprobs=wanted))
            found = max(found, largest_incarnation(infos.values(), folder.run_id))
        incarnation = self._context.status.incarnation = folder.next_incarnation(found)
        return services, RunIdentity(folder.run_id, incarnation)

    def _replica(self, endpoint: Endpoint) -> Replica:
        client = GenerationClient(endpoint, retry=self._config.retry)
        self._stack.push_async_callback(client.close)
        return Replica(endpoint.address, client)
