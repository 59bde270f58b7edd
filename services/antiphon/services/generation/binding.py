"""Which run a service belongs to, and what that run may sample and push.

Pure rules: they know the calls that were made and the weights that are loaded, nothing of the
engine or the wire. `Binding` moves with the calls that it lets in; time comes from its clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial

import grpc

from antiphon.clients.types import FieldError, LoadedWeights, PushHeader, PushKind
from antiphon.services.common.errors import ServiceError


class PushDecision(Enum):
    """What to do with a push that is let in."""

    TAKE = "take"
    ALREADY_APPLIED = "already applied"


def _refusal(reason: str, message: str, metadata: dict[str, str]) -> ServiceError:
    return ServiceError(
        grpc.StatusCode.FAILED_PRECONDITION, message, reason=reason, metadata=metadata
    )


def _short(digest: bytes) -> str:
    return f"{digest.hex()[:16]}…" if digest else "none"


def check_sampling(
    loaded: LoadedWeights, *, run_id: str, incarnation: int, min_version: int, boot_id: str
) -> None:
    """Refuses to sample weights that are missing, too old or another incarnation's.

    Raises:
        ServiceError: FAILED_PRECONDITION with WEIGHTS_MISSING or WEIGHTS_FOREIGN.
    """
    metadata = {
        "loaded_version": str(loaded.version),
        "loaded_digest": loaded.digest.hex(),
        "wanted_version": str(min_version),
        "boot_id": boot_id,
    }
    if not loaded.digest:
        raise _refusal(
            "WEIGHTS_MISSING", "no weights are loaded yet; push them, then ask again", metadata
        )
    if loaded.version and (loaded.run_id, loaded.incarnation) != (run_id, incarnation):
        raise _refusal(
            "WEIGHTS_FOREIGN",
            f"weights version {loaded.version} was applied by incarnation {loaded.incarnation} of "
            f"run {loaded.run_id!r}, wanted weights of incarnation {incarnation} of run "
            f"{run_id!r}; push them, then ask again",
            metadata,
        )
    if loaded.version < min_version:
        raise _refusal(
            "WEIGHTS_MISSING",
            f"weights version {loaded.version} is loaded, wanted at least {min_version}; push it, "
            "then ask again",
            metadata,
        )


class Binding:
    """The run that a service belongs to, its incarnation and its agent.

    The first run that calls gets the service; another run gets it once the bound run has not called
    for `lease_seconds`. A call under way counts as calling. Within a run the highest incarnation
    seen rules. What makes a service another run's or incarnation's is a push, or a Generate that is
    let in, which it is only where the caller's own weights are loaded or nothing was pushed yet.

    Args:
        lease_seconds: How long a silent run keeps the service.
        clock: Seconds that only grow.
        agent: The agent served; None takes that of the run's first call.
        boot_id: Of this process, for error metadata.
    """

    def __init__(
        self,
        *,
        lease_seconds: float,
        clock: Callable[[], float],
        agent: int | None = None,
        boot_id: str = "",
    ) -> None:
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._fixed_agent = agent
        self._agent = agent
        self._boot_id = boot_id
        self._run_id = ""
        self._incarnation = 0
        self._last_call = 0.0
        self._under_way = 0

    @property
    def run_id(self) -> str:
        """The bound run; empty for none."""
        return self._run_id

    @property
    def agent(self) -> int | None:
        """The agent served; None before the first call where none was fixed."""
        return self._agent

    @property
    def incarnation(self) -> int:
        """The highest incarnation of the bound run seen; 0 for none."""
        return self._incarnation

    @property
    def lease_seconds_left(self) -> float:
        """For how long another run is refused; 0 where nobody holds the service."""
        if not self._run_id:
            return 0.0
        if self._under_way:
            return self._lease_seconds
        return max(0.0, self._last_call + self._lease_seconds - self._clock())

    def admit_generate(
        self, loaded: LoadedWeights, *, run_id: str, incarnation: int, agent: int, min_version: int
    ) -> None:
        """Lets a Generate in or says why not.

        Raises:
            ServiceError: FAILED_PRECONDITION with RUN_LEASE_HELD, INCARNATION_SUPERSEDED,
                WEIGHTS_FOREIGN or WEIGHTS_MISSING.
            FieldError: Another agent's request.
        """
        if self._run_id not in ("", run_id):
            self._check_lease(run_id)
        sampling = partial(
            check_sampling,
            loaded,
            run_id=run_id,
            incarnation=incarnation,
            min_version=min_version,
            boot_id=self._boot_id,
        )
        if run_id != self._run_id or incarnation > self._incarnation:
            # A refused call binds nothing: who may only sample must not end the run by a number.
            sampling()
        self._enter(run_id, incarnation, agent, "agent")
        sampling()

    def admit_push(
        self, loaded: LoadedWeights, header: PushHeader, *, base_digest: bytes = b""
    ) -> PushDecision:
        """Lets a push in, or says why not.

        Args:
            loaded: What is loaded.
            header: Of the push.
            base_digest: Digest of the model's own tensors as they are loaded, which an adapter
                adds to; empty for none.

        Raises:
            ServiceError: FAILED_PRECONDITION with RUN_LEASE_HELD, INCARNATION_SUPERSEDED,
                PUSH_VERSION_CONFLICT or PUSH_BASE_MISMATCH.
            FieldError: Another agent's push.
        """
        if self._run_id not in ("", header.run_id):
            self._check_lease(header.run_id)
        self._enter(header.run_id, header.incarnation, header.agent, "header.agent")
        metadata = {
            "loaded_version": str(loaded.version),
            "loaded_digest": loaded.digest.hex(),
            "wanted_version": str(header.version),
            "boot_id": self._boot_id,
        }
        own = (loaded.run_id, loaded.incarnation) == (header.run_id, header.incarnation)
        if own and header.version == loaded.version and header.digest == loaded.digest:
            return PushDecision.ALREADY_APPLIED
        if own and header.version <= loaded.version:
            raise _refusal(
                "PUSH_VERSION_CONFLICT",
                f"header.version: got {header.version} with digest {header.digest.hex()[:16]}…, "
                f"wanted above {loaded.version}, which is applied with digest "
                f"{loaded.digest.hex()[:16]}…",
                metadata,
            )
        fits = base_digest and header.base_digest == base_digest
        if header.kind is PushKind.ADAPTER and not fits:
            raise _refusal(
                "PUSH_BASE_MISMATCH",
                f"header.base_digest: got {header.base_digest.hex()[:16]}…, wanted "
                f"{_short(base_digest)}, that of the model without adapter; send all",
                metadata,
            )
        base = (header.base_version, header.base_digest)
        fits = loaded.digest and base == (loaded.version, loaded.digest)
        if header.kind is PushKind.DELTA and not fits:
            raise _refusal(
                "PUSH_BASE_MISMATCH",
                f"header.base_version: got {header.base_version} with digest "
                f"{header.base_digest.hex()[:16]}…, wanted {loaded.version} with "
                f"{_short(loaded.digest)}, which is loaded; send what is missing, or all",
                metadata,
            )
        return PushDecision.TAKE

    def check_current(self, run_id: str, incarnation: int) -> None:
        """Refuses a caller that has been overtaken since it was let in.

        Raises:
            ServiceError: FAILED_PRECONDITION with RUN_LEASE_HELD or INCARNATION_SUPERSEDED.
        """
        if run_id != self._run_id:
            raise self._held(run_id)
        if incarnation < self._incarnation:
            raise self._superseded(incarnation)

    def renew(self, run_id: str, incarnation: int) -> None:
        """Renews the lease of the bound run; a call of anybody else changes nothing."""
        if run_id == self._run_id and incarnation >= self._incarnation:
            self._last_call = self._clock()

    @contextmanager
    def call(self, run_id: str) -> Iterator[None]:
        """Keeps the lease of a run that was let in while its call is under way."""
        if run_id != self._run_id:
            yield
            return
        self._under_way += 1
        try:
            yield
        finally:
            if run_id == self._run_id:
                self._under_way -= 1
                self._last_call = self._clock()

    def _enter(self, run_id: str, incarnation: int, agent: int, field: str) -> None:
        """Binds the run or moves it to a higher incarnation, and renews its lease."""
        if run_id == self._run_id and incarnation < self._incarnation:
            raise self._superseded(incarnation)
        wanted = self._agent if run_id == self._run_id else self._fixed_agent
        if wanted is not None and agent != wanted:
            raise FieldError(field, agent, f"{wanted}, the agent that this service serves")
        if run_id != self._run_id:
            self._run_id, self._under_way, self._incarnation = run_id, 0, 0
            self._agent = agent
        self._incarnation = incarnation
        self._last_call = self._clock()

    def _check_lease(self, run_id: str) -> None:
        if self.lease_seconds_left > 0:
            raise self._held(run_id)

    def _held(self, run_id: str) -> ServiceError:
        left = self.lease_seconds_left
        return _refusal(
            "RUN_LEASE_HELD",
            f"run_id: got {run_id!r}, wanted {self._run_id!r}, which holds this service; another "
            f"run can have it once that one has not called for {self._lease_seconds:g} s "
            f"({left:.1f} s left)",
            {"run_id": self._run_id, "lease_seconds_left": f"{left:.3f}"},
        )

    def _superseded(self, incarnation: int) -> ServiceError:
        return _refusal(
            "INCARNATION_SUPERSEDED",
            f"incarnation: got {incarnation}, wanted {self._incarnation}: a newer learner has "
            f"taken run {self._run_id!r} over; stop this one",
            {"incarnation": str(self._incarnation)},
        )
