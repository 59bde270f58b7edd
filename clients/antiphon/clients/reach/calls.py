"""Health, token, version, clock and speed of a service, by calls that change nothing."""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from antiphon.clients.endpoint import Endpoint, Metadata
from antiphon.clients.identity import TIME_KEY, VERSION_KEY, version
from antiphon.clients.reach.connection import speaks_tls
from antiphon.clients.reach.remarks import FaultError, Remark, Verdict

SLOW_SECONDS = 0.05
SKEWED_SECONDS = 5.0
SLOW_BYTES_PER_SECOND = 20e6
_LATENCY_CALLS = 7
_UPLOAD_BYTES = 3 << 20
# The RPC that any caller may make at no cost; of Transition an empty request is refused.
_HARMLESS = {
    "antiphon.v1.GenerationService": "GetModelInfo",
    "antiphon.v1.RewardService": "GetRewardInfo",
    "antiphon.v1.TransitionService": "Transition",
}


_NEEDED = ("GetModelInfo", "Transition")
"""A reward service need not offer the one that it is asked."""


async def health(
    channel: grpc.aio.Channel, endpoint: Endpoint, service: str, timeout: float
) -> Remark:
    """Ask its health; a server that cannot be called is a fault."""
    try:
        status = await _check(channel, service, timeout, endpoint.metadata())
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return Remark("health", Verdict.WARNING, "no health service", "offer grpc.health.v1")
        if error.code() is grpc.StatusCode.NOT_FOUND:
            raise FaultError(
                "health",
                f"a gRPC server without {service}",
                "compare the address: another service answers there",
            ) from error
        advice = "the server speaks no gRPC here, or refuses the connection; read its log"
        if endpoint.tls is None and await speaks_tls(endpoint, timeout):
            advice = "the server speaks TLS: give the endpoint tls = { ca = ... }"
        raise FaultError("health", f"{error.code().name}: {error.details()}", advice) from error
    if status != "SERVING":
        raise FaultError("health", status, "it is starting, draining or broken; read its log")
    return Remark("health", Verdict.OK, "SERVING")


async def _check(
    channel: grpc.aio.Channel, service: str, timeout: float, metadata: Metadata = ()
) -> str:
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    answer = await stub.Check(request, timeout=timeout, metadata=metadata)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


async def identity(
    channel: grpc.aio.Channel, endpoint: Endpoint, service: str, timeout: float
) -> tuple[list[Remark], float]:
    """Token, version and clock, and how long the call took."""
    method: Any = channel.unary_unary(
        f"/{service}/{_HARMLESS[service]}", request_serializer=None, response_deserializer=None
    )
    began, clock = time.perf_counter(), time.time()
    call = method(b"", timeout=timeout, metadata=endpoint.metadata())
    code = await call.code()
    seconds = time.perf_counter() - began
    if code is grpc.StatusCode.PERMISSION_DENIED:
        raise FaultError(
            "token",
            f"{code.name}: {await call.details()}",
            "give the caller its role in the service's --access-file",
        )
    if code is grpc.StatusCode.UNAUTHENTICATED:
        raise FaultError(
            "token",
            f"{code.name}: {await call.details()}",
            "set token_file to a file with the token that the service has in its --token-file",
        )
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        raise FaultError("calls", f"{code.name}: {await call.details()}", "read the service's log")
    if code is grpc.StatusCode.UNIMPLEMENTED and _HARMLESS[service] in _NEEDED:
        raise FaultError(
            "calls",
            f"a gRPC server without {service}",
            "compare the address: another service answers there",
        )
    told = {str(key): str(value) for key, value in await call.initial_metadata() or ()}
    remarks = [
        Remark("token", Verdict.OK, "let in" if endpoint.token_file else "none is asked for")
    ]
    if VERSION_KEY not in told:
        remarks.append(Remark("version", Verdict.OK, "not told; no server of antiphon's own"))
        return remarks, seconds
    return [
        *remarks,
        _versions(told[VERSION_KEY]),
        *([clocks(told[TIME_KEY], clock, seconds)] if TIME_KEY in told else []),
    ], seconds


def _versions(theirs: str) -> Remark:
    ours = version()
    if theirs.split(".")[:2] == ours.split(".")[:2]:
        return Remark("version", Verdict.OK, theirs)
    return Remark(
        "version",
        Verdict.WARNING,
        f"{theirs}, and {ours} here",
        "install the same version on both sides",
    )


def clocks(theirs: str, began: float, seconds: float) -> Remark:
    """How a server's clock compares with ours.

    Args:
        theirs: What it answered, seconds since 1970.
        began: Our clock when the call began.
        seconds: How long the call took; the answer was made somewhere within.
    """
    skew = float(theirs) - (began + seconds / 2)
    if abs(skew) <= SKEWED_SECONDS + seconds:
        return Remark("clock", Verdict.OK, f"within {max(abs(skew), seconds / 2):.2g} s of ours")
    return Remark(
        "clock",
        Verdict.WARNING,
        f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} ours",
        "set the clocks by NTP: certificates, logs and traces go by them",
    )


async def latency(channel: grpc.aio.Channel, service: str, timeout: float) -> float:
    """Seconds of a small call, the median of several."""
    seconds = []
    for _ in range(_LATENCY_CALLS):
        began = time.perf_counter()
        await _check(channel, service, timeout)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def speed(latency: float) -> Remark:
    """What a latency means for a run."""
    if latency <= SLOW_SECONDS:
        return Remark("latency", Verdict.OK, f"{latency * 1000:.1f} ms a call")
    return Remark(
        "latency",
        Verdict.WARNING,
        f"{latency * 1000:.0f} ms a call",
        "each turn of a rollout waits for it several times: bring learner and service closer",
    )


async def upload(
    channel: grpc.aio.Channel, latency: float, push_bytes: int, timeout: float
) -> Remark:
    """A health check with a name of some megabytes; every server answers that with an error."""
    began = time.perf_counter()
    with contextlib.suppress(grpc.aio.AioRpcError):
        await _check(channel, "x" * _UPLOAD_BYTES, timeout)
    rate = _UPLOAD_BYTES / max(time.perf_counter() - began - latency, 1e-6)
    takes = f"a full push of {push_bytes / 1e6:,.0f} MB takes about {push_bytes / rate:.1f} s"
    detail = f"{rate / 1e6:,.0f} MB/s; {takes}"
    if rate >= SLOW_BYTES_PER_SECOND:
        return Remark("upload", Verdict.OK, detail)
    advice = "use a faster link; deltas are a small part of a full push (docs/weights.md)"
    return Remark("upload", Verdict.WARNING, detail, advice)
