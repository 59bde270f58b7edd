"""The processes that serve one agent, and what the learner asks of each."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Protocol

import grpc

from antiphon.clients.errors import CallError
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.types import (
    Completion,
    GenerateRequest,
    LoadedWeights,
    ModelInfo,
    PushHeader,
    PushKind,
    PushResult,
    StoredChunks,
    TensorDtype,
)
from antiphon.learner.start_wait import Reachable
from antiphon.learner.weights.lease import LEASE_HELD, LeaseWait
from antiphon.learner.weights.replica_metrics import (
    CHANGES,
    DELIVERED,
    SHOWN,
    count_from_zero,
    slot,
    tell_replicas,
)

logger = logging.getLogger(__name__)


class GenerationCalls(Reachable, Protocol):
    """The calls of `antiphon.clients.generation.GenerationClient` that the learner makes."""

    async def get_model_info(
        self, timeout: float, *, retry: RetryPolicy | None = None
    ) -> ModelInfo:
        """What the service runs."""
        ...

    def generate(
        self,
        request: GenerateRequest,
        *,
        timeout: float,
        resume: Literal["whole", "missing"] = "whole",
        retry: RetryPolicy | None = None,
    ) -> AsyncIterator[Completion]:
        """Completions as they end, none twice."""
        ...

    async def push_weights(
        self,
        header: PushHeader,
        read_tensor: Callable[[int], memoryview],
        *,
        timeout: float,
        stored: StoredChunks | None = None,
    ) -> PushResult:
        """Push until it is applied, going on where it broke."""
        ...

    async def renew_lease(self, loaded: LoadedWeights, timeout: float) -> None:
        """Have the service stay the run's that has pushed what is loaded."""
        ...

    def watch_health(self) -> AsyncIterator[bool]:
        """Whether the service serves, now and whenever that changes."""
        ...

    async def close(self) -> None:
        """Close the channel."""
        ...


@dataclass(frozen=True)
class RunIdentity:
    """The run, and which of its learner processes this is (counted from 1)."""

    run_id: str
    incarnation: int


@dataclass(eq=False)
class Replica:
    """One process that serves an agent; `acknowledged` are the weights that it said it has.

    One that is not `reachable` gets no prompts until a push has reached it again, one that does not
    keep pace (`keeps_pace`) some on trial only. One that is `fixed` takes no push: it samples with
    the weights that it started with.

    Attributes:
        batch_rows: Completions that it computes at once; 0 where it does not say.
        delta_dtypes: Number formats in which it takes deltas; empty where it does not say.
        serving: What its health says, where that is watched.
        outstanding: Tokens that it may still sample of what it was asked for.
        reads_store: It reads pushes from a store.
        failures: How often it was lost since it last delivered.
        pushes: How many pushes to it are under way.
        bound: It has taken a push of this run, or sampled for it.
        trouble: Why it is not asked, as far as is known.
    """

    address: str
    client: GenerationCalls
    acknowledged: LoadedWeights = field(default_factory=LoadedWeights)
    push_kinds: frozenset[PushKind] = frozenset({PushKind.FULL})
    batch_rows: int = 0
    delta_dtypes: frozenset[TensorDtype] = frozenset()
    reachable: bool = True
    keeps_pace: bool = True
    serving: bool = True
    outstanding: int = 0
    reads_store: bool = False
    failures: int = 0
    pushes: int = 0
    bound: bool = False
    trouble: str = ""

    def takes_deltas(self, dtype: TensorDtype) -> bool:
        """Whether it takes what changed alone, in this number format on the wire."""
        formats = self.delta_dtypes
        return PushKind.DELTA in self.push_kinds and (not formats or dtype in formats)

    @property
    def fixed(self) -> bool:
        """Whether it takes no pushes."""
        return not self.push_kinds


class Replicas:
    """The replicas of an agent at this moment, in an order that stays; tells of every change.

    Args:
        replicas: Those to begin with.
        agent: Whose they are, counted from 0.
        patience: Seconds without any reachable one after which the run ends; None where nobody
            looks for those that are lost, so that the last one's loss ends it at once.
        grow: Others may join.
        lease: Waits for those that another run holds; None waits for none.
        note: Tells the user.
    """

    def __init__(
        self,
        replicas: Iterable[Replica] = (),
        *,
        agent: int = 0,
        patience: float | None = None,
        grow: bool = True,
        lease: LeaseWait | None = None,
        note: Callable[[str], object] = logger.warning,
    ) -> None:
        self._replicas = list(replicas)
        self.agent = agent
        self.patience = patience
        self._grow = grow
        self._lease = lease or LeaseWait(agent)
        self.absence = Absence(self, note)
        self._change = asyncio.Event()
        count_from_zero(agent)

    def __iter__(self) -> Iterator[Replica]:
        return iter(tuple(self._replicas))

    def __len__(self) -> int:
        return len(self._replicas)

    def __getitem__(self, index: int) -> Replica:
        return self._replicas[index]

    @property
    def live(self) -> list[Replica]:
        """Those that get prompts and pushes."""
        return [replica for replica in self._replicas if replica.reachable]

    @property
    def elastic(self) -> bool:
        """Whether a turn may find other replicas at its end than at its beginning."""
        return self.patience is not None and (self._grow or len(self._replicas) > 1)

    def add(self, replica: Replica) -> None:
        """Take another one in."""
        self._replicas.append(replica)
        self.tell()

    def remove(self, replica: Replica) -> None:
        """Forget one, if it is not forgotten yet."""
        if replica in self._replicas:
            self._replicas.remove(replica)
            self.tell()

    def tell(self) -> None:
        """Wake up whoever waits for a change."""
        self._change.set()
        self._change = asyncio.Event()
        tell_replicas(self.agent, self._replicas)

    def changed(self) -> Coroutine[Any, Any, object]:
        """Wait for the next change after this call, not after the first step of what it gives."""
        return self._change.wait()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once this holds."""
        while not condition():
            await self.changed()

    def lose(self, replica: Replica, error: CallError) -> None:
        """Go on without a replica that cannot be reached, where another is left or awaited.

        Raises:
            CallError: The error is not that of an unreachable process, or nobody else is left.
        """
        self.leave_out(replica, str(error))
        if not error.transient or not (self.patience is not None or self.live):
            raise error

    def leave_out(self, replica: Replica, why: str) -> None:
        """Ask nothing of a replica any more until a push has reached it again."""
        replica.reachable = False
        replica.trouble = why
        replica.failures += 1
        logger.warning("%s is left out until a push reaches it again: %s", replica.address, why)
        self.count("lost")

    def take_back(self, replica: Replica) -> None:
        """Ask a replica again, or for the first time: it has the published weights."""
        if not replica.reachable:
            replica.reachable, replica.trouble = True, ""
            if self.live:
                self.absence.over()
            self.count("returned")

    async def lease_ended(self, replica: Replica, error: CallError) -> bool:
        """Whether to ask again a replica that refused, since another run's lease has ended.

        That is waited for before this run has had it; later, another run has taken it away.
        """
        if error.reason != LEASE_HELD or replica.bound:
            return False
        return await self._lease.ended(error)

    def count_tokens(self, replica: Replica, tokens: int) -> None:
        """Count what a replica delivered first."""
        place = self._replicas.index(replica) if replica in self._replicas else SHOWN
        DELIVERED.labels(str(self.agent), slot(place)).inc(tokens)

    def count(self, change: str) -> None:
        """Count a change, and wake up whoever waits for one."""
        CHANGES.labels(str(self.agent), change).inc()
        self.tell()


class Absence:
    """How long an agent has had no replica that can be asked while one is needed; told to the user.

    Args:
        replicas: The agent's.
        note: Tells the user.
        now: Seconds that only grow.
    """

    TOLD_AFTER = 2.0
    """Seconds until the user is told: most of those that are away are back by then."""

    def __init__(
        self,
        replicas: Replicas,
        note: Callable[[str], object],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replicas = replicas
        self._note = note
        self._now = now
        self._since: float | None = None
        self._told = False
        self._lost: CallError | None = None

    def lost(self, error: CallError) -> None:
        """Note how a replica was lost."""
        self._lost = error

    def seconds(self, *, needed: bool = True) -> float | None:
        """Seconds until this is to be asked again; None where a replica can be asked.

        Args:
            needed: Nobody is at work for the agent either.

        Raises:
            CallError: There has been none for too long, with how the last ones were lost.
        """
        now, patience = self._now(), self._replicas.patience
        if self._replicas.live or patience is None:
            self.over()
            return None
        if not needed:
            return None
        self._since = now if self._since is None else self._since
        away = now - self._since
        if away >= patience:
            raise self._too_long(patience)
        if not self._told and away >= self.TOLD_AFTER:
            self._told = True
            self._note(
                f"waiting for {self._who}, {self._where}, for up to {patience:g} s "
                f"(replicas_timeout): {self._why}"
            )
        return (patience if self._told else min(patience, self.TOLD_AFTER)) - away

    def over(self) -> None:
        """A replica is back: the next absence is one of its own."""
        if self._told and self._since is not None:
            self._note(f"{self._who} is asked again, after {self._now() - self._since:.0f} s")
        self.unneeded()

    def unneeded(self) -> None:
        """Nobody waits any more: who waits later is given the whole time."""
        self._since, self._told = None, False

    @property
    def what(self) -> str:
        """What is waited for, for who asks why the run does not get on."""
        return f"a generation service of {self._who}, {self._where} ({self._why})"

    @property
    def _who(self) -> str:
        return f"agent {self._replicas.agent}"

    @property
    def _where(self) -> str:
        addresses = [replica.address for replica in self._replicas]
        return "of which no address is known" if not addresses else f"at {', '.join(addresses)}"

    @property
    def _why(self) -> str:
        troubles = dict.fromkeys(r.trouble for r in self._replicas if r.trouble)
        return "; ".join(troubles) or "nobody says that it serves"

    def _too_long(self, patience: float) -> CallError:
        lost = self._lost
        return CallError(
            grpc.StatusCode.UNAVAILABLE if lost is None else lost.code,
            f"{self._who} could not be asked for {patience:g} s (replicas_timeout): {self._why}",
            address=", ".join(replica.address for replica in self._replicas) or "no address",
            rpc="Generate",
        )


class RunSupersededError(RuntimeError):
    """A learner with a higher incarnation drives this run now; this one must stop."""


class ServiceTakenError(RuntimeError):
    """A generation service belongs to another run."""


def raise_explained(error: CallError, identity: RunIdentity, agent: int) -> NoReturn:
    """Raise the error to stop with: those that concern whole runs say what to do.

    Raises:
        RunSupersededError: A later learner drives the run.
        ServiceTakenError: The service belongs to another run.
        CallError: Every other error, as it is.
    """
    where = f"agent {agent}'s generation service at {error.address}"
    if error.reason == "INCARNATION_SUPERSEDED":
        newer = error.metadata.get("incarnation", "a higher one")
        raise RunSupersededError(
            f"another learner has taken over run {identity.run_id}: {where} follows incarnation "
            f"{newer}, this learner is {identity.incarnation}. It stops and publishes nothing more."
        ) from error
    if error.reason == LEASE_HELD:
        other = error.metadata.get("run_id", "another run")
        left = error.metadata.get("lease_seconds_left", "a few")
        raise ServiceTakenError(
            f"{where} belongs to run {other}, which called it within its lease ({left} s left). "
            f"Stop that run, wait for its lease to end, or give run {identity.run_id} another "
            "service."
        ) from error
    raise error
