"""What the clients count of their calls."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from prometheus_client import REGISTRY
from tests.integration.clients.judges import TASKS, Judge, joint_action, scores
from tests.integration.clients.servers import QUICK, abort, serving, within

from antiphon.clients.errors import CallError
from antiphon.clients.reward import RewardClient
from antiphon.clients.types import JointAction, Score

ACTIONS = [joint_action(0)]
CALL = {
    "grpc_type": "unary",
    "grpc_service": "antiphon.v1.RewardService",
    "grpc_method": "Score",
}


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_calls_are_counted_by_method_and_code_and_those_made_again_by_why() -> None:
    names = {
        "started": ("grpc_client_started_total", CALL),
        "seconds": ("grpc_client_handling_seconds_count", CALL),
        "ok": ("grpc_client_handled_total", {**CALL, "grpc_code": "OK"}),
        "failed": ("grpc_client_handled_total", {**CALL, "grpc_code": "UNAVAILABLE"}),
        "again": (
            "antiphon_client_retries_total",
            {"grpc_method": "Score", "grpc_code": "UNAVAILABLE"},
        ),
    }
    before = {key: counted(name, **labels) for key, (name, labels) in names.items()}

    async def away_twice(actions: list[JointAction], context: Any) -> list[Score]:
        calls.append(actions)
        if len(calls) < 3:
            await abort(context, grpc.StatusCode.UNAVAILABLE)
        return await scores(actions, context)

    calls: list[list[JointAction]] = []

    judge = Judge(away_twice)
    async with serving(judge.register) as address, RewardClient(address, retry=QUICK) as client:
        await within(client.score("r", TASKS, ACTIONS, timeout=20))
    grown = {key: counted(name, **labels) - before[key] for key, (name, labels) in names.items()}
    assert grown == {"started": 3, "seconds": 3, "ok": 1, "failed": 2, "again": 2}


async def test_a_failure_for_good_is_no_retry() -> None:
    async def refuses(actions: list[JointAction], context: Any) -> list[Score]:
        await abort(context, grpc.StatusCode.INVALID_ARGUMENT)
        return []

    labels = {"grpc_method": "Score", "grpc_code": "INVALID_ARGUMENT"}
    judge = Judge(refuses)
    async with serving(judge.register) as address, RewardClient(address, retry=QUICK) as client:
        with pytest.raises(CallError):
            await within(client.score("r", TASKS, ACTIONS, timeout=20))
    assert counted("grpc_client_handled_total", **CALL, grpc_code="INVALID_ARGUMENT") >= 1
    assert counted("antiphon_client_retries_total", **labels) == 0
