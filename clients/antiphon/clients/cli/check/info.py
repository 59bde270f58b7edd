"""Checks of reachability and of what a service says about itself."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2

from antiphon.clients.cli.check.probe import Probe
from antiphon.clients.cli.check.report import Finding
from antiphon.clients.types import RewardInfo
from antiphon.clients.wire import reward_info_from_proto
from antiphon.v1 import reward_pb2


async def check_info(probe: Probe) -> tuple[list[Finding], RewardInfo | None]:
    """Reach the service and ask what it is; no info where it cannot be reached, or is another."""
    reached = await _reach(probe)
    if not reached.passed:
        return [reached], None
    if (absent := await _absent(probe)) is not None:
        return [reached, absent], None
    if probe.subject.service != "antiphon.v1.RewardService":
        return [reached], RewardInfo(name="")
    answer = await probe.call(
        reward_pb2.GetRewardInfoRequest().SerializeToString(),
        rpc="GetRewardInfo",
        response_type=reward_pb2.GetRewardInfoResponse,
    )
    name = "GetRewardInfo"
    wanted = "name, value range, limits"
    if answer.error is not None:
        advice = "implement GetRewardInfo; a name alone is enough"
        return [reached, Finding(name, False, answer.error.summary, wanted, advice)], RewardInfo(
            name=""
        )
    info = reward_info_from_proto(answer.message)
    return [reached, _info_finding(name, info, wanted)], info


def _info_finding(name: str, info: RewardInfo, wanted: str) -> Finding:
    if not info.name:
        return Finding(name, False, "an empty name", wanted, "set name")
    low, high = info.value_min, info.value_max
    if low is not None and high is not None and low > high:
        return Finding(name, False, f"values from {low} to {high}", wanted, "swap them")
    limits = (
        f"batches of {info.max_batch_size or 'any number'}, "
        f"{info.max_concurrent_calls or 'any number of'} calls at once"
    )
    return Finding(name, True, f"{info.name!r}, {limits}", wanted)


async def _absent(probe: Probe) -> Finding | None:
    """That the server lacks the method that is checked; None where it has it."""
    subject = probe.subject
    error = (await probe.call(b"")).error
    if error is None or error.code is not grpc.StatusCode.UNIMPLEMENTED:
        return None
    return Finding(
        "service",
        False,
        f"a gRPC server without {subject.rpc}",
        f"{subject.service}/{subject.rpc}",
        f"implement {subject.rpc}, or compare the address: another service may answer there",
    )


async def _reach(probe: Probe) -> Finding:
    """Whether anything answers gRPC there: any answer but a failed connection will do."""
    name = "connection"
    wanted = "a gRPC server"
    answer = await probe.call(
        health_pb2.HealthCheckRequest(service=probe.subject.service).SerializeToString(),
        service="grpc.health.v1.Health",
        rpc="Check",
        response_type=health_pb2.HealthCheckResponse,
    )
    if answer.error is None:
        status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.message.status)
        advice = f"report {probe.subject.service} as SERVING"
        return Finding(name, status == "SERVING", f"health {status}", wanted, advice)
    code = answer.error.code
    if code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND):
        return Finding(name, True, "no health service; probes and balancing want one", wanted)
    advice = {
        grpc.StatusCode.UNAUTHENTICATED: "give --token-file",
        grpc.StatusCode.UNAVAILABLE: "start the service, and look at the address and the TLS files",
    }.get(code, "look into the service's log")
    return Finding(name, False, answer.error.summary, wanted, advice)
