"""Errors of a service, and the gRPC status that each becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from antiphon.clients.types import FieldError

ERROR_DOMAIN = "antiphon.v1"
STATUS_DETAILS_KEY = "grpc-status-details-bin"

# A status travels in HTTP/2 trailers, of which peers by default take 8 KiB: the message once as
# percent-encoded text, and once more, with reason, metadata and violations, in base64.
_MESSAGE_BYTES = 2600
_FIELD_MESSAGE_BYTES = 1600
_DETAIL_BYTES = 800
_IDS_SHOWN = 8


class StartError(Exception):
    """A service cannot start as it is configured. The message says what to change."""


class ServiceError(Exception):
    """An error that a servicer answers with.

    Args:
        code: Canonical status code.
        message: What came, what was wanted, what to do next.
        reason: Name of an `ErrorReason` without its prefix, or "".
        metadata: Values that go with the reason.
        violations: Fields at fault: path to description.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.violations = dict(violations or {})


class UserFunctionError(Exception):
    """A user's function raised, or answered with what it must not.

    Args:
        function: Its name as the user knows it.
        problem: What happened, in one line.
        joint_action_ids: What it was called for.
        trace: The user's traceback, or "".
    """

    def __init__(
        self,
        function: str,
        problem: str,
        *,
        joint_action_ids: Sequence[str] = (),
        trace: str = "",
    ) -> None:
        shown = ", ".join(joint_action_ids[:_IDS_SHOWN])
        more = len(joint_action_ids) - _IDS_SHOWN
        place = f" for joint action {shown}" if shown else ""
        super().__init__(f"{function}{place}{f' and {more} more' if more > 0 else ''}: {problem}")
        self.function = function
        self.problem = problem
        self.joint_action_ids = tuple(joint_action_ids)
        self.trace = trace


class UserFunctionTimeoutError(UserFunctionError):
    """A user's function did not return in time; its process is no longer to be trusted."""


@dataclass(frozen=True, slots=True)
class StatusParts:
    """A gRPC error as it goes to the caller."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    violations: Mapping[str, str] = field(default_factory=dict)

    def trailers(self) -> tuple[tuple[str, bytes], ...]:
        """The rich details as trailing metadata; empty where there are none."""
        details: list[any_pb2.Any] = []
        if self.violations:
            details.append(_packed(_bad_request(self.violations)))
        if self.reason:
            info = error_details_pb2.ErrorInfo(
                reason=self.reason, domain=ERROR_DOMAIN, metadata=dict(self.metadata)
            )
            details.append(_packed(info))
        if not details:
            return ()
        number: int = self.code.value[0]
        status = status_pb2.Status(
            code=code_pb2.Code.ValueType(number), message=self.message, details=details
        )
        return ((STATUS_DETAILS_KEY, status.SerializeToString()),)


def status_of(error: BaseException, *, expose_tracebacks: bool) -> StatusParts:
    """The status that `error` becomes. What is not known to be meant for callers shows nothing.

    Args:
        error: What a servicer raised.
        expose_tracebacks: Whether a user's traceback goes to the caller.
    """
    if isinstance(error, FieldError):
        return StatusParts(
            grpc.StatusCode.INVALID_ARGUMENT,
            _shortened(str(error), _FIELD_MESSAGE_BYTES),
            violations={_clipped(error.field): _clipped(f"got {error.got}, wanted {error.wanted}")},
        )
    if isinstance(error, ServiceError):
        return StatusParts(
            error.code,
            _shortened(error.message, _MESSAGE_BYTES),
            error.reason,
            error.metadata,
            error.violations,
        )
    if isinstance(error, UserFunctionError):
        text = str(error)
        if error.trace and expose_tracebacks:
            text = f"{text}\n{error.trace}"
        ids = error.joint_action_ids
        return StatusParts(
            grpc.StatusCode.INTERNAL,
            _shortened(text, _MESSAGE_BYTES),
            "USER_FUNCTION_FAILED",
            {
                "function": _clipped(error.function, _DETAIL_BYTES // 4),
                "joint_action_ids": _clipped(",".join(ids[:_IDS_SHOWN]), _DETAIL_BYTES // 2),
            },
        )
    return StatusParts(grpc.StatusCode.INTERNAL, "the service failed; its log has the traceback")


def _bad_request(violations: Mapping[str, str]) -> error_details_pb2.BadRequest:
    return error_details_pb2.BadRequest(
        field_violations=[
            error_details_pb2.BadRequest.FieldViolation(field=path, description=text)
            for path, text in violations.items()
        ]
    )


def _packed(
    message: error_details_pb2.BadRequest | error_details_pb2.ErrorInfo,
) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _clipped(text: str, limit: int = _DETAIL_BYTES) -> str:
    """The beginning of `text`, within `limit` bytes of UTF-8."""
    return text.encode(errors="replace")[:limit].decode(errors="ignore")


def _shortened(text: str, limit: int) -> str:
    """`text` within `limit` bytes as gRPC encodes it (percent-encoded), its middle left out."""

    def size(part: str) -> int:
        return len(quote(part, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"))

    text = text.encode(errors="replace").decode()
    if size(text) <= limit:
        return text
    mark = "\n[…]\n"
    head, tail = text[: limit // 3], text[-limit:]
    while size(head) > limit // 3:
        head = head[: len(head) * 3 // 4]
    while size(head) + size(mark) + size(tail) > limit:
        tail = tail[-(len(tail) * 9 // 10) :]
    return head + mark + tail
