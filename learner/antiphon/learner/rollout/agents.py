"""Samples one agent on its replicas, and brings back a replica that lost its weights.

Where a replica cannot be reached any more, the others take what it has not delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.types import (
    Completion,
    GenerateRequest,
    PromptSamples,
    SamplingParameters,
)
from antiphon.learner.concurrency import task_group
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import Replica, RunIdentity, lose, raise_explained

WEIGHTS_LOST = frozenset({"WEIGHTS_MISSING", "WEIGHTS_FOREIGN"})
RESYNCS = 3
"""How often one batch of one replica may find its weights lost before the run stops."""


class Agent:
    """One agent's generation: prompts split over its reachable replicas in contiguous shares.

    Args:
        identity: The run that asks.
        agent: Counted from 0.
        replicas: The agent's processes, one at least.
        publisher: Holds the version that is sampled, and sends it again to who lost it.
        sampling: How to sample.
        context_length: Most tokens of prompt and completion together, of the smallest replica.
        timeout: Seconds per batch.
        include_full_logprobs: Also ask for log-probabilities under the full softmax.
    """

    def __init__(
        self,
        identity: RunIdentity,
        agent: int,
        replicas: Sequence[Replica],
        publisher: AgentPublisher,
        *,
        sampling: SamplingParameters,
        context_length: int,
        timeout: float,
        include_full_logprobs: bool = False,
    ) -> None:
        self._identity = identity
        self._agent = agent
        self._replicas = replicas
        self._publisher = publisher
        self._sampling = sampling
        self._timeout = timeout
        self._include_full_logprobs = include_full_logprobs
        self.context_length = context_length

    async def generate(
        self, prompts: Sequence[PromptSamples], deliver: Callable[[Completion], None]
    ) -> None:
        """Hand every completion to `deliver` as it ends, indices as in `prompts`.

        Raises:
            RunSupersededError: A later learner drives the run.
            ServiceTakenError: A replica belongs to another run.
            CallError: No replica could be reached; names the last one's address.
            ContractError: A replica's completions are not those that were asked for.
        """
        delivered: set[tuple[int, int]] = set()
        left = list(range(len(prompts)))
        while left:
            live = [replica for replica in self._replicas if replica.reachable]
            async with task_group() as group:
                for replica, share in zip(live, shares(len(left), len(live)), strict=True):
                    if share:
                        places = left[share.start : share.stop]
                        group.create_task(
                            self._share_or_lose(replica, prompts, places, delivered, deliver)
                        )
            left = [place for place in left if _missing(prompts, [place], delivered)]

    async def _share_or_lose(
        self,
        replica: Replica,
        prompts: Sequence[PromptSamples],
        places: Sequence[int],
        delivered: set[tuple[int, int]],
        deliver: Callable[[Completion], None],
    ) -> None:
        try:
            await self._generate_share(replica, prompts, places, delivered, deliver)
        except CallError as error:
            lose(replica, self._replicas, error)

    async def _generate_share(
        self,
        replica: Replica,
        prompts: Sequence[PromptSamples],
        places: Sequence[int],
        delivered: set[tuple[int, int]],
        deliver: Callable[[Completion], None],
    ) -> None:
        request = GenerateRequest(
            run_id=self._identity.run_id,
            incarnation=self._identity.incarnation,
            agent=self._agent,
            min_weights_version=self._publisher.version,
            prompts=tuple(prompts[place] for place in places),
            sampling=self._sampling,
            include_full_logprobs=self._include_full_logprobs,
        )
        for resync in range(RESYNCS + 1):
            try:
                await self._stream(replica, request, places, delivered, deliver)
            except CallError as error:
                if error.reason not in WEIGHTS_LOST or resync == RESYNCS:
                    raise_explained(error, self._identity, self._agent)
                await self._publisher.push_again(replica)
            else:
                break
        if missing := _missing(prompts, places, delivered):
            raise ContractError(
                replica.address,
                "Generate",
                f"the stream ended without the completions {sorted(missing)[:5]} "
                f"(prompt, sample) of agent {self._agent}",
            )

    async def _stream(
        self,
        replica: Replica,
        request: GenerateRequest,
        places: Sequence[int],
        delivered: set[tuple[int, int]],
        deliver: Callable[[Completion], None],
    ) -> None:
        """One Generate call. What was delivered before recurs and is dropped."""
        async for completion in replica.client.generate(
            request, timeout=self._timeout, resume="whole"
        ):
            index, sample = completion.prompt_index, completion.sample_index
            if index >= len(request.prompts) or sample >= len(request.prompts[index].seeds):
                raise ContractError(
                    replica.address,
                    "Generate",
                    f"got a completion for prompt {index}, sample {sample}, which was not asked "
                    "for",
                )
            self._check_version(replica, completion, request.min_weights_version)
            place = (places[index], sample)
            if place not in delivered:
                delivered.add(place)
                deliver(replace(completion, prompt_index=place[0]))

    def _check_version(self, replica: Replica, completion: Completion, wanted: int) -> None:
        versions = [span.weights_version for span in completion.weights_spans]
        if not versions or min(versions) < wanted:
            raise ContractError(
                replica.address,
                "Generate",
                f"agent {self._agent}'s completion was sampled under weights versions {versions}, "
                f"wanted {wanted} at least",
            )


def _missing(
    prompts: Sequence[PromptSamples], places: Sequence[int], delivered: set[tuple[int, int]]
) -> set[tuple[int, int]]:
    """What of the prompts at these places is not delivered yet, as (prompt, sample)."""
    wanted = {(place, sample) for place in places for sample in range(len(prompts[place].seeds))}
    return wanted - delivered


def shares(count: int, replicas: int) -> list[range]:
    """Contiguous shares of `count` prompts, one per replica, the first ones larger by one."""
    small, larger = divmod(count, replicas)
    ranges, start = [], 0
    for replica in range(replicas):
        stop = start + small + (1 if replica < larger else 0)
        ranges.append(range(start, stop))
        start = stop
    return ranges
