"""What a failed call tells its caller."""

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from antiphon.clients.errors import CallError, from_rpc_error


def rpc_error(
    code: grpc.StatusCode, message: str = "m", details: bytes | None = None
) -> grpc.aio.AioRpcError:
    trailers = grpc.aio.Metadata()
    if details is not None:
        trailers.add("grpc-status-details-bin", details)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, details=message)


def read(error: grpc.aio.AioRpcError) -> CallError:
    return from_rpc_error(error, address="host:1", rpc="Score")


def packed(*messages: object, code: int = 9) -> bytes:
    status = status_pb2.Status(code=code, message="m")
    for message in messages:
        detail = any_pb2.Any()
        detail.Pack(message)  # type: ignore[arg-type]
        status.details.append(detail)
    return status.SerializeToString()


def test_reason_metadata_and_violations_are_read() -> None:
    info = error_details_pb2.ErrorInfo(
        reason="WEIGHTS_MISSING", domain="antiphon.v1", metadata={"loaded_version": "3"}
    )
    bad = error_details_pb2.BadRequest(
        field_violations=[{"field": "prompts[0].seeds", "description": "none given"}]
    )
    error = read(rpc_error(grpc.StatusCode.FAILED_PRECONDITION, "push first", packed(info, bad)))
    assert error.code is grpc.StatusCode.FAILED_PRECONDITION
    assert (error.reason, error.metadata) == ("WEIGHTS_MISSING", {"loaded_version": "3"})
    assert [(v.field, v.description) for v in error.violations] == [
        ("prompts[0].seeds", "none given")
    ]
    for said in ("Score", "host:1", "WEIGHTS_MISSING", "push first", "prompts[0].seeds"):
        assert said in str(error)


def test_a_reason_of_another_domain_is_not_taken_for_ours() -> None:
    info = error_details_pb2.ErrorInfo(reason="WEIGHTS_MISSING", domain="example.com")
    error = read(rpc_error(grpc.StatusCode.INTERNAL, "m", packed(info)))
    assert error.reason == ""


def test_a_method_that_the_server_lacks_points_to_the_address() -> None:
    """Unless the service says itself that it lacks a feature."""
    advice = "compare the address: another service may answer there"
    assert advice in str(read(rpc_error(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")))
    info = error_details_pb2.ErrorInfo(reason="FEATURE_UNAVAILABLE", domain="antiphon.v1")
    own = read(rpc_error(grpc.StatusCode.UNIMPLEMENTED, "no pushes", packed(info)))
    assert advice not in str(own)


@pytest.mark.parametrize("details", [b"", b"\xff\xff\xff", b"not a status"])
def test_details_that_cannot_be_read_do_not_hide_the_error(details: bytes) -> None:
    error = read(rpc_error(grpc.StatusCode.NOT_FOUND, "no such thing", details))
    assert error.code is grpc.StatusCode.NOT_FOUND
    assert "no such thing" in str(error)


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_only_the_codes_of_the_contract_are_transient(code: grpc.StatusCode) -> None:
    """S8: transient codes are tried again, permanent ones are not."""
    transient = {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED", "DEADLINE_EXCEEDED"}
    assert read(rpc_error(code)).transient == (code.name in transient)


def test_a_deadline_of_the_users_function_is_final() -> None:
    """S8: that function ran once and was given up; a service says so with a reason."""
    info = error_details_pb2.ErrorInfo(reason="USER_FUNCTION_FAILED", domain="antiphon.v1")
    error = read(rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "m", packed(info, code=4)))
    assert not error.transient


@pytest.mark.parametrize(
    "message",
    [
        "CLIENT: Sent message larger than max (5 vs. 4)",
        "SERVER: Received message larger than max (4194305 vs. 4194304)",
    ],
)
def test_a_message_over_the_size_limit_is_not_sent_again(message: str) -> None:
    """S1: it would be as large the next time."""
    assert not read(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, message)).transient


@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL])
@pytest.mark.parametrize(
    "message",
    [
        "Stream removed (Wrap failed (TSI_INTERNAL_ERROR))",
        "Received RST_STREAM with error code 2",
    ],
)
def test_a_connection_that_breaks_is_a_passing_matter_whatever_code_it_gets(
    code: grpc.StatusCode, message: str
) -> None:
    """S8: gRPC's own words for bytes that TLS found damaged as a call was writing."""
    assert read(rpc_error(code, message)).transient
    info = error_details_pb2.ErrorInfo(reason="USER_FUNCTION_FAILED", domain="antiphon.v1")
    assert not read(rpc_error(code, message, packed(info, code=13))).transient
    assert not read(rpc_error(code, f"reward: {message}")).transient


def test_a_call_that_a_server_never_looked_at_may_be_made_again() -> None:
    """S8: gRPC cancels what has waited for 30 s, as where code of a user holds the interpreter."""
    code = grpc.StatusCode.CANCELLED
    assert read(rpc_error(code, "CANCELLED")).transient
    assert not read(rpc_error(code, "the judge gave up")).transient
