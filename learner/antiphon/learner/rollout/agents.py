"""Samples one agent on its replicas, and brings back a replica that lost its weights.

Every replica gets an equal share of a batch. Where one cannot be reached any more, or falls behind,
the others take what it has not delivered. One that fell behind gets no share of its own until it
keeps pace again: it is asked for some prompts on trial, beside the replica that is relied on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Literal

from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.types import (
    Completion,
    GenerateRequest,
    PromptSamples,
    SamplingParameters,
)
from antiphon.learner.rollout.shares import Part, Share, Work, seconds_until_behind, shares
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import Replica, RunIdentity, lose, raise_explained

logger = logging.getLogger(__name__)

WEIGHTS_LOST = frozenset({"WEIGHTS_MISSING", "WEIGHTS_FOREIGN"})
RESYNCS = 3
"""How often one batch of one replica may find its weights lost before the run stops."""


class Agent:
    """One agent's generation: prompts split over its replicas in contiguous shares.

    Args:
        identity: The run that asks.
        agent: Counted from 0.
        replicas: The agent's processes, one at least.
        publisher: Holds the version that is sampled, and sends it again to who lost it.
        sampling: How to sample.
        context_length: Most tokens of prompt and completion together, of the smallest replica.
        timeout: Seconds per batch.
        include_full_logprobs: Also ask for log-probabilities under the full softmax.
        repeats_whole: A stream that broke is asked again whole, so that the batch is computed as
            before; else for what is missing only.
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
        repeats_whole: bool = True,
    ) -> None:
        self._identity = identity
        self._agent = agent
        self._replicas = replicas
        self._publisher = publisher
        self._sampling = sampling
        self._timeout = timeout
        self._include_full_logprobs = include_full_logprobs
        self._resume: Literal["whole", "missing"] = "whole" if repeats_whole else "missing"
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
        work = Work(prompts, deliver)
        asked: list[Share] = []
        try:
            while left := work.left:
                self._count_on_somebody()
                relied_on = {part[0] for share in asked if share.relied_on for part in share.parts}
                if unasked := [part for part in left if part[0] not in relied_on]:
                    asked += self._ask(work, unasked, asked)
                await self._some_end(asked)
        finally:
            for share in asked:
                share.task.cancel()
            await asyncio.gather(*(share.task for share in asked), return_exceptions=True)

    def _count_on_somebody(self) -> None:
        """Where all that keep pace are gone, those that do not are what there is."""
        live = [replica for replica in self._replicas if replica.reachable]
        if not any(replica.keeps_pace for replica in live):
            for replica in live:
                replica.keeps_pace = True

    def _ask(self, work: Work, parts: Sequence[Part], before: Sequence[Share]) -> list[Share]:
        """Share these out, and try whoever fell behind in an earlier batch."""
        live = [replica for replica in self._replicas if replica.reachable]
        sharers = [replica for replica in live if replica.keeps_pace]
        parts_of = [parts[s.start : s.stop] for s in shares(len(parts), len(sharers))]
        asked = [
            self._begin(replica, work, share)
            for replica, share in zip(sharers, parts_of, strict=True)
            if share
        ]
        half = parts_of[0][: -(-len(parts_of[0]) // 2)]
        tried = {share.replica.address for share in before}
        for replica in live:
            if not replica.keeps_pace and replica.address not in tried:
                asked.append(self._begin(replica, work, half, trial=True))
        return asked

    def _begin(
        self, replica: Replica, work: Work, parts: Sequence[Part], *, trial: bool = False
    ) -> Share:
        task = asyncio.create_task(self._generate_share(replica, work, parts))
        return Share(replica, tuple(parts), task, trial=trial)

    async def _some_end(self, asked: Sequence[Share]) -> None:
        """Wait until a share has ended, or somebody is behind."""
        patience = seconds_until_behind(asked, self._sampling.max_new_tokens)
        under_way = {share.task: share for share in asked if share.seconds is None}
        done, _ = await asyncio.wait(
            under_way, timeout=patience, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            self._end(under_way[task])
        if not done:
            for share in under_way.values():
                if share.relied_on:
                    share.replica.keeps_pace = False
                    logger.warning(
                        "%s is behind: the others take its prompts until it keeps pace again",
                        share.replica.address,
                    )

    def _end(self, share: Share) -> None:
        share.seconds = time.monotonic() - share.began
        try:
            share.task.result()
        except CallError as error:
            share.lost = True
            lose(share.replica, self._replicas, error)
        else:
            share.replica.keeps_pace |= share.trial

    async def _generate_share(self, replica: Replica, work: Work, parts: Sequence[Part]) -> int:
        """Ask one replica, however often it loses its weights; returns the most tokens."""
        request = GenerateRequest(
            run_id=self._identity.run_id,
            incarnation=self._identity.incarnation,
            agent=self._agent,
            min_weights_version=self._publisher.version,
            prompts=work.prompts(parts),
            sampling=self._sampling,
            include_full_logprobs=self._include_full_logprobs,
        )
        for resync in range(RESYNCS + 1):
            try:
                longest = await self._stream(replica, request, work, parts)
            except CallError as error:
                if error.reason not in WEIGHTS_LOST or resync == RESYNCS:
                    raise_explained(error, self._identity, self._agent)
                await self._publisher.push_again(replica)
            else:
                break
        if missing := work.missing(parts):
            raise ContractError(
                replica.address,
                "Generate",
                f"the stream ended without the completions {missing[:5]} "
                f"(prompt, sample) of agent {self._agent}",
            )
        return longest

    async def _stream(
        self, replica: Replica, request: GenerateRequest, work: Work, parts: Sequence[Part]
    ) -> int:
        """One Generate call; returns the tokens of its longest completion."""
        longest = 1
        async for completion in replica.client.generate(
            request, timeout=self._timeout, resume=self._resume
        ):
            index, sample = completion.prompt_index, completion.sample_index
            if index >= len(parts) or sample >= len(parts[index][1]):
                raise ContractError(
                    replica.address,
                    "Generate",
                    f"got a completion for prompt {index}, sample {sample}, which was not asked "
                    "for",
                )
            self._check_version(replica, completion, request.min_weights_version)
            longest = max(longest, len(completion.token_ids))
            place, samples = parts[index]
            work.take(completion, place, samples[sample])
        return longest

    def _check_version(self, replica: Replica, completion: Completion, wanted: int) -> None:
        versions = [span.weights_version for span in completion.weights_spans]
        if not versions or min(versions) < wanted:
            raise ContractError(
                replica.address,
                "Generate",
                f"agent {self._agent}'s completion was sampled under weights versions {versions}, "
                f"wanted {wanted} at least",
            )
