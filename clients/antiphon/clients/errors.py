"""How a failed call looks to its caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

ERROR_DOMAIN = "antiphon.v1"
"""The `google.rpc.ErrorInfo.domain` whose reasons are those of `antiphon.v1.ErrorReason`."""

DETAILS_KEY = "grpc-status-details-bin"

_TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
    }
)

_BROKEN_STREAM = ("Stream removed", "Received RST_STREAM")
"""How gRPC's own messages begin where a connection broke under a call.

Where it breaks in the middle of writing, for example as TLS finds damaged bytes, the code is not
UNAVAILABLE but UNKNOWN or INTERNAL.
"""
_THROWN_AWAY = "CANCELLED"
"""gRPC's own message for a call that a server let go without having looked at it.

By default it does so to what has waited for 30 s, as while its interpreter was held.
"""


@dataclass(frozen=True, slots=True)
class Violation:
    """One field of a request that the service refused."""

    field: str
    description: str


class CallError(Exception):
    """A call failed, with what the service said about it.

    Args:
        code: The gRPC status code.
        message: What the service, or the transport, said.
        address: Where the call went.
        rpc: The method's name, for example ``Score``.
        reason: Name of an `antiphon.v1.ErrorReason` without its prefix; empty for none.
        metadata: What the error's `ErrorInfo` carries beside the reason.
        violations: Fields that the service refused.
        attempts: How often the call was made.
        earlier: How earlier attempts failed, where that differs from the last one.

    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        address: str,
        rpc: str,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[Violation] = (),
        attempts: int = 1,
        earlier: Sequence[str] = (),
    ) -> None:
        self.code = code
        self.message = message
        self.address = address
        self.rpc = rpc
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)
        self.attempts = attempts
        self.earlier = tuple(earlier)
        super().__init__(self._text())

    def _text(self) -> str:
        parts = [f"{self.rpc} at {self.address} failed: {self.summary}"]
        parts += [
            f"{violation.field}: {violation.description}"
            for violation in self.violations
            if violation.description not in self.message
        ]
        if self.code is grpc.StatusCode.UNIMPLEMENTED and not self.reason:
            parts.append("compare the address: another service may answer there")
        if self.attempts > 1:
            parts.append(f"tried {self.attempts} times")
        if self.earlier:
            parts.append("earlier: " + " | ".join(self.earlier))
        return "; ".join(parts)

    @property
    def summary(self) -> str:
        """Code, reason and message in one line."""
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.code.name}{reason}: {self.message or 'no message'}"

    @property
    def transient(self) -> bool:
        """Whether the same call may succeed later, as the contract says it.

        A deadline that this side set counts as transient, one that a service reports for its user
        function does not. A message over the size limit never gets smaller. A connection that
        broke is a passing matter whatever code gRPC gives it, and so is a call thrown away.
        """
        if self.code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return not self.reason
        if self.code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL):
            return not self.reason and self.message.startswith(_BROKEN_STREAM)
        if self.code is grpc.StatusCode.CANCELLED:
            return not self.reason and self.message == _THROWN_AWAY
        return self.code in _TRANSIENT and "larger than max" not in self.message

    def after(self, attempts: int, earlier: Sequence[CallError]) -> CallError:
        """Return the same error as the last of several attempts."""
        summaries = dict.fromkeys(error.summary for error in earlier)
        summaries.pop(self.summary, None)
        error = CallError(
            self.code,
            self.message,
            address=self.address,
            rpc=self.rpc,
            reason=self.reason,
            metadata=self.metadata,
            violations=self.violations,
            attempts=attempts,
            earlier=tuple(summaries)[:3],
        )
        error.__cause__ = self.__cause__
        return error


class ContractError(Exception):
    """A service's answer breaks the contract: applying it would be a guess.

    Args:
        address: The service.
        rpc: The method's name.
        problem: What is wrong with the answer, with the ids or fields concerned.

    """

    def __init__(self, address: str, rpc: str, problem: str) -> None:
        super().__init__(
            f"the answer of {rpc} at {address} breaks the contract: {problem}; "
            "nothing of it is used"
        )
        self.address = address
        self.rpc = rpc
        self.problem = problem


def from_rpc_error(
    error: grpc.aio.AioRpcError, *, address: str, rpc: str, attempts: int = 1
) -> CallError:
    """Read what a failed call says: code, message, and the details that came with it."""
    reason = ""
    metadata: dict[str, str] = {}
    violations: list[Violation] = []
    for detail in _details(error):
        info = error_details_pb2.ErrorInfo()
        bad_request = error_details_pb2.BadRequest()
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
            if info.domain == ERROR_DOMAIN:
                reason, metadata = info.reason, dict(info.metadata)
        elif detail.Is(bad_request.DESCRIPTOR):
            detail.Unpack(bad_request)
            violations += [
                Violation(entry.field, entry.description) for entry in bad_request.field_violations
            ]
    result = CallError(
        error.code(),
        error.details() or "",
        address=address,
        rpc=rpc,
        reason=reason,
        metadata=metadata,
        violations=violations,
        attempts=attempts,
    )
    result.__cause__ = error
    return result


def _details(error: grpc.aio.AioRpcError) -> list[Any]:
    trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    for key, value in trailers:
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return list(status_pb2.Status.FromString(value).details)
            except DecodeError:
                # The code and the message still say what happened.
                return []
    return []
