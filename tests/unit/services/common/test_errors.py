"""What a caller sees of an error."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2, status_pb2

from antiphon.clients.types import FieldError
from antiphon.services.common.errors import (
    ServiceError,
    StatusParts,
    UserFunctionError,
    status_of,
)


def details_of(parts: StatusParts) -> list[Any]:
    ((key, data),) = parts.trailers()
    assert key == "grpc-status-details-bin"
    status = status_pb2.Status.FromString(data)
    assert status.message == parts.message
    assert status.code == parts.code.value[0]
    return list(status.details)


def test_a_bad_field_is_invalid_argument_with_its_path() -> None:
    parts = status_of(
        FieldError("prompts[2].seeds", "none", "at least one"), expose_tracebacks=False
    )
    assert parts.code is grpc.StatusCode.INVALID_ARGUMENT
    assert parts.message == "prompts[2].seeds: got none, wanted at least one"
    (detail,) = details_of(parts)
    request = error_details_pb2.BadRequest()
    assert detail.Unpack(request)
    assert request.field_violations[0].field == "prompts[2].seeds"


def test_a_service_error_carries_its_reason() -> None:
    error = ServiceError(
        grpc.StatusCode.FAILED_PRECONDITION,
        "push version 3 first",
        reason="WEIGHTS_MISSING",
        metadata={"loaded_version": "2"},
    )
    parts = status_of(error, expose_tracebacks=False)
    assert parts.code is grpc.StatusCode.FAILED_PRECONDITION
    (detail,) = details_of(parts)
    info = error_details_pb2.ErrorInfo()
    assert detail.Unpack(info)
    assert (info.reason, info.domain) == ("WEIGHTS_MISSING", "antiphon.v1")
    assert dict(info.metadata) == {"loaded_version": "2"}


def test_an_unexpected_error_shows_nothing_of_itself() -> None:
    parts = status_of(RuntimeError("password is hunter2"), expose_tracebacks=True)
    assert parts.code is grpc.StatusCode.INTERNAL
    assert "hunter2" not in parts.message
    assert parts.trailers() == ()


@pytest.mark.parametrize("exposed", [True, False])
def test_a_users_traceback_goes_out_only_where_it_may(exposed: bool) -> None:
    error = UserFunctionError(
        "judge.score", "raised KeyError: 'x'", joint_action_ids=["j1", "j2"], trace="line 3 of mine"
    )
    parts = status_of(error, expose_tracebacks=exposed)
    assert parts.code is grpc.StatusCode.INTERNAL
    assert ("line 3 of mine" in parts.message) is exposed
    assert "judge.score for joint action j1, j2: raised KeyError: 'x'" in parts.message
    assert parts.reason == "USER_FUNCTION_FAILED"
    assert parts.metadata == {"function": "judge.score", "joint_action_ids": "j1,j2"}


@pytest.mark.parametrize("letter", ["x", "é", "%", "\n", "日", "\ud800"])
@pytest.mark.parametrize("where", ["trace", "problem", "field", "service"])
def test_a_long_error_still_fits_the_trailers(letter: str, where: str) -> None:
    """Over 8 KiB of trailers a caller would see another error in place of this one."""
    long = "begin" + letter * 50_000 + "end"
    error: Exception = {
        "trace": UserFunctionError("f", "raised", trace=long, joint_action_ids=["i" * 300] * 99),
        "problem": UserFunctionError("f" * 999, long),
        "field": FieldError(long, long, long),
        "service": ServiceError(grpc.StatusCode.ABORTED, long, reason="PUSH_REPLACED"),
    }[where]
    parts = status_of(error, expose_tracebacks=True)
    # gRPC percent-encodes what is not printable ASCII, and sends the details in base64.
    text = sum(1 if 32 <= b < 127 and b != 37 else 3 for b in parts.message.encode())
    size = text + sum(len(v) * 4 / 3 for _, v in parts.trailers())
    assert size < 8 * 1024
    if where in ("trace", "service"):
        assert parts.message.endswith("end")
