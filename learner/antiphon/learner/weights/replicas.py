"""The processes that serve one agent, and what the learner asks of each."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn, Protocol

from antiphon.clients.errors import CallError
from antiphon.clients.types import (
    Completion,
    GenerateRequest,
    LoadedWeights,
    ModelInfo,
    PushHeader,
    PushKind,
    PushResult,
)

logger = logging.getLogger(__name__)


class GenerationCalls(Protocol):
    """The calls of `antiphon.clients.generation.GenerationClient` that the learner makes."""

    async def get_model_info(self, timeout: float) -> ModelInfo:
        """What the service runs."""
        ...

    def generate(
        self,
        request: GenerateRequest,
        *,
        timeout: float,
        resume: Literal["whole", "missing"] = "whole",
    ) -> AsyncIterator[Completion]:
        """Completions as they end, none twice."""
        ...

    async def push_weights(
        self,
        header: PushHeader,
        read_tensor: Callable[[int], memoryview],
        *,
        timeout: float,
    ) -> PushResult:
        """Push until it is applied, going on where it broke."""
        ...

    async def close(self) -> None:
        """Close the channel."""
        ...


@dataclass(frozen=True)
class RunIdentity:
    """The run, and which of its learner processes this is (counted from 1)."""

    run_id: str
    incarnation: int


@dataclass
class Replica:
    """One process that serves an agent; `acknowledged` are the weights that it said it has.

    One that is not `reachable` gets no prompts until a push has reached it again, one that does not
    keep pace (`keeps_pace`) some on trial only. One that is `fixed` takes no push: it samples with
    the weights that it started with.
    """

    address: str
    client: GenerationCalls
    acknowledged: LoadedWeights = field(default_factory=LoadedWeights)
    push_kinds: frozenset[PushKind] = frozenset({PushKind.FULL})
    reachable: bool = True
    keeps_pace: bool = True

    @property
    def fixed(self) -> bool:
        """Whether it takes no pushes."""
        return not self.push_kinds


def lose(replica: Replica, replicas: Sequence[Replica], error: CallError) -> None:
    """Go on without a replica that cannot be reached, where another one is left.

    Raises:
        CallError: The error is not that of an unreachable process, or nobody else is left.
    """
    replica.reachable = False
    if not error.transient or not any(other.reachable for other in replicas):
        raise error
    logger.warning("%s is left out until a push reaches it again: %s", replica.address, error)


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
    if error.reason == "RUN_LEASE_HELD":
        other = error.metadata.get("run_id", "another run")
        left = error.metadata.get("lease_seconds_left", "a few")
        raise ServiceTakenError(
            f"{where} belongs to run {other}, which called it within its lease ({left} s left). "
            f"Stop that run, wait for its lease to end, or give run {identity.run_id} another "
            "service."
        ) from error
    raise error
