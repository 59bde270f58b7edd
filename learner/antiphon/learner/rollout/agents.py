"""Samples one agent on its replicas: a queue of chunks, worked off by whoever has room.

A chunk goes to the replica with the fewest outstanding tokens. Where one cannot be reached any
more, or falls behind, others are asked for its chunks; one that joins in the middle takes what
waits. One that fell behind is asked on trial only, for what the others will come to last, until it
keeps pace again. A request carries the seeds of its completions, so whoever answers gives the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import grpc

from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.types import (
    Completion,
    GenerateRequest,
    PromptSamples,
    SamplingParameters,
)
from antiphon.clients.waiting import progressed, waiting_for
from antiphon.learner.rollout.work_queue import Asking, Chunk, Part, Purpose, WorkQueue
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replica_metrics import CHUNKS_MOVED
from antiphon.learner.weights.replicas import Replica, Replicas, RunIdentity, raise_explained

logger = logging.getLogger(__name__)

WEIGHTS_LOST = frozenset({"WEIGHTS_MISSING", "WEIGHTS_FOREIGN"})
RESYNCS = 3
"""How often a replica may find its weights lost, without delivering, before the run stops."""
_ONCE = RetryPolicy(attempts=1)


class Agent:
    """One agent's generation.

    Args:
        identity: The run that asks.
        agent: Counted from 0.
        replicas: The agent's processes.
        publisher: Holds the version that is sampled, and sends it again to who lost it.
        sampling: How to sample.
        context_length: Most tokens of prompt and completion together, of the smallest replica.
        timeout: Seconds per chunk.
        include_full_logprobs: Also ask for log-probabilities under the full softmax.
        retry: How often a chunk may fail, wherever it is asked for, without delivering anything.
        repeats_whole: What broke is asked again whole, so that it is computed as before; else
            for what is missing only.
    """

    def __init__(
        self,
        identity: RunIdentity,
        agent: int,
        replicas: Replicas,
        publisher: AgentPublisher,
        *,
        sampling: SamplingParameters,
        context_length: int,
        timeout: float,
        include_full_logprobs: bool = False,
        retry: RetryPolicy | None = None,
        repeats_whole: bool = True,
    ) -> None:
        self._identity = identity
        self._agent = agent
        self._replicas = replicas
        self._publisher = publisher
        self._sampling = sampling
        self._timeout = timeout
        self._include_full_logprobs = include_full_logprobs
        self._retry = retry or RetryPolicy()
        self._whole = repeats_whole
        self.context_length = context_length

    async def generate(
        self, prompts: Sequence[PromptSamples], deliver: Callable[[Completion], None]
    ) -> None:
        """Hand every completion to `deliver` as it ends, indices as in `prompts`.

        Raises:
            RunSupersededError: A later learner drives the run.
            ServiceTakenError: A replica belongs to another run.
            CallError: No replica could be reached, or a chunk failed wherever it was asked for;
                names the last one's address.
            ContractError: A replica's completions are not those that were asked for.
        """
        self._count_on_somebody()
        relied_on = [replica for replica in self._replicas.live if replica.keeps_pace]
        queue = WorkQueue(prompts, relied_on, deliver, elastic=self._replicas.elastic)
        try:
            while not queue.done:
                self._hand_out(queue)
                await self._something_ends(queue)
        finally:
            self._replicas.absence.unneeded()
            for asking in queue.askings:
                asking.task.cancel()
            await asyncio.gather(*(a.task for a in queue.askings), return_exceptions=True)

    def _count_on_somebody(self) -> None:
        """Where all that keep pace are gone, those that do not are what there is."""
        live = self._replicas.live
        if not any(replica.keeps_pace for replica in live):
            for replica in live:
                replica.keeps_pace = True

    def _hand_out(self, queue: WorkQueue) -> None:
        """Ask for what waits, as far as there is room for it; try whoever fell behind."""
        self._count_on_somebody()
        while queue.waiting and (replica := self._roomiest(queue)) is not None:
            self._ask(queue, queue.next(), replica, Purpose.WORK)
        for replica in self._replicas.live:
            idle = not (replica.keeps_pace or replica.outstanding)
            if idle and (trial := queue.to_try()) is not None:
                self._ask(queue, trial[0], replica, trial[1])

    def _roomiest(self, queue: WorkQueue) -> Replica | None:
        """The replica with the fewest outstanding tokens, among those that have room for more.

        One that computes so many at once is busy with them; what it has not begun is better kept
        for whoever is free first. So it is asked ahead only while half of a batch is outstanding,
        and more chunks wait than there are replicas.
        """
        live = [replica for replica in self._replicas.live if replica.keeps_pace]
        ahead = queue.waiting > len(live)
        free = [replica for replica in live if self._has_room(replica, ahead=ahead)]
        return min(free, key=lambda replica: replica.outstanding, default=None)

    def _has_room(self, replica: Replica, *, ahead: bool = True) -> bool:
        if not (replica.outstanding and replica.batch_rows):
            return True
        if len(self._replicas) == 1 and not self._replicas.elastic:
            return True  # nobody else will ever be there to take it
        at_once = replica.batch_rows * self._sampling.max_new_tokens
        return ahead and 2 * replica.outstanding <= at_once

    def _ask(self, queue: WorkQueue, chunk: Chunk, replica: Replica, purpose: Purpose) -> None:
        parts = chunk.parts(whole=self._whole)
        if purpose is Purpose.PROBE:
            parts = _half(parts)
        elif any(asking.chunk is chunk for asking in queue.askings):
            CHUNKS_MOVED.labels(str(self._agent)).inc()
        tokens = sum(len(samples) for _, samples in parts) * self._sampling.max_new_tokens
        asking = Asking(chunk, parts, replica, purpose, tokens)
        replica.outstanding += tokens
        asking.task = asyncio.create_task(self._generate_chunk(queue, asking))
        asking.task.add_done_callback(lambda _: self._settle(asking, asking.outstanding))
        queue.askings.append(asking)

    async def _something_ends(self, queue: WorkQueue) -> None:
        """Wait until an asking ends, a replica comes or goes, or one is behind."""
        most = self._sampling.max_new_tokens
        under_way = {asking.task: asking for asking in queue.under_way}
        absence, changed = self._replicas.absence, asyncio.create_task(self._replicas.changed())
        try:
            seconds = absence.seconds(needed=not under_way)
            if alone := seconds is not None:
                self._publisher.check_superseded()
            with waiting_for(absence.what) if alone else nullcontext():
                done, _ = await asyncio.wait(
                    {*under_way, changed},
                    timeout=seconds if alone else queue.seconds_until_behind(most),
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            changed.cancel()
        for task, asking in under_way.items():
            if task in done:
                self._end(queue, asking)
        if not done:
            for replica in queue.behind(most):
                self._fall_behind(queue, replica)

    def _fall_behind(self, queue: WorkQueue, replica: Replica) -> None:
        replica.keeps_pace = False
        logger.warning(
            "%s is behind: the others take its prompts until it keeps pace again", replica.address
        )
        self._replicas.count("behind")
        for asking in reversed(queue.under_way):
            if asking.replica is replica:
                queue.put_back(asking.chunk)

    def _end(self, queue: WorkQueue, asking: Asking) -> None:
        """Note how an asking ended."""
        queue.ended(asking)
        replica, chunk = asking.replica, asking.chunk
        try:
            asking.task.result()
        except asyncio.CancelledError:
            asking.lost = True  # another was faster
            return
        except CallError as error:
            asking.lost = True
            self._replicas.absence.lost(error)
            self._lose(replica, error)
            self._count_failure(chunk, error)
            queue.put_back(chunk)
            return
        tried = asking.purpose is not Purpose.WORK
        if tried and queue.keeps_pace(asking, self._sampling.max_new_tokens):
            replica.keeps_pace = True
        for other in queue.under_way:
            if other.chunk.done and other.purpose is not Purpose.PROBE:
                other.task.cancel()

    def _count_failure(self, chunk: Chunk, error: CallError) -> None:
        """Ask for a chunk again only so often: its prompts may be what takes replicas down."""
        chunk.lost += 1
        chunk.deadlines += error.code is grpc.StatusCode.DEADLINE_EXCEEDED
        policy = self._retry
        if chunk.lost >= policy.attempts or chunk.deadlines >= policy.deadline_attempts:
            raise error.after(chunk.lost, ())

    def _lose(self, replica: Replica, error: CallError) -> None:
        returns = self._replicas.patience is not None and replica.failures < RESYNCS
        if error.reason in WEIGHTS_LOST and returns:
            self._replicas.leave_out(replica, str(error))
        else:
            self._replicas.lose(replica, error)

    async def _generate_chunk(self, queue: WorkQueue, asking: Asking) -> int:
        """Ask one replica; where nobody else brings it back, however often it loses its weights.

        Returns the tokens of the longest completion.
        """
        replica, chunk = asking.replica, asking.chunk
        watched = self._replicas.patience is not None
        request = GenerateRequest(
            run_id=self._identity.run_id,
            incarnation=self._identity.incarnation,
            agent=self._agent,
            min_weights_version=self._publisher.version,
            prompts=chunk.asked(asking.parts),
            sampling=self._sampling,
            include_full_logprobs=self._include_full_logprobs,
        )
        resyncs = 0
        while True:
            try:
                longest = await self._stream(request, queue, asking)
            except CallError as error:
                if await self._replicas.lease_ended(replica, error):
                    continue
                if watched and (error.transient or error.reason in WEIGHTS_LOST):
                    raise
                if error.reason not in WEIGHTS_LOST or resyncs == RESYNCS:
                    raise_explained(error, self._identity, self._agent)
                resyncs += 1
                await self._publisher.push_again(replica)
            else:
                break
        if asking.purpose is not Purpose.PROBE and chunk.left:
            raise ContractError(
                replica.address,
                "Generate",
                f"the stream ended without the completions {sorted(chunk.left)[:5]} "
                f"(prompt, sample) of agent {self._agent}",
            )
        return longest

    async def _stream(self, request: GenerateRequest, queue: WorkQueue, asking: Asking) -> int:
        """One Generate call; returns the tokens of its longest completion."""
        replica, parts, longest = asking.replica, asking.parts, 1
        async for completion in replica.client.generate(
            request,
            timeout=self._timeout,
            resume="whole" if self._whole else "missing",
            retry=None if self._replicas.patience is None else _ONCE,
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
            tokens = len(completion.token_ids)
            longest = max(longest, tokens)
            place, samples = parts[index]
            if queue.take(completion, asking, place, samples[sample]):
                progressed()
                self._replicas.count_tokens(replica, tokens)
            replica.failures, replica.bound = 0, True
            self._settle(asking, min(asking.outstanding, self._sampling.max_new_tokens))
        return longest

    def _settle(self, asking: Asking, tokens: int) -> None:
        """So many tokens are no longer outstanding; tell those who wait for room."""
        replica = asking.replica
        full = not self._has_room(replica)
        asking.outstanding -= tokens
        replica.outstanding -= tokens
        # An idle one is told of as well: a batch sampled beside this one may wait for just that.
        if (full and self._has_room(replica)) or not replica.outstanding:
            self._replicas.tell()

    def _check_version(self, replica: Replica, completion: Completion, wanted: int) -> None:
        versions = [span.weights_version for span in completion.weights_spans]
        if not versions or min(versions) < wanted:
            raise ContractError(
                replica.address,
                "Generate",
                f"agent {self._agent}'s completion was sampled under weights versions {versions}, "
                f"wanted {wanted} at least",
            )


def _half(parts: Sequence[Part]) -> list[Part]:
    """Half of the prompts, or of the samples of a single one."""
    if len(parts) > 1:
        return list(parts[: (len(parts) + 1) // 2])
    return [(place, samples[: (len(samples) + 1) // 2]) for place, samples in parts]
