"""Reaching a service step by step: name, connection, TLS, health, token, version, clock, speed.

Each step is a `Remark`. Where a step fails, what is wrong and what to do about it is said, and the
steps that need it are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import grpc.aio

from antiphon.clients.endpoint import Endpoint, open_channel
from antiphon.clients.reach import calls
from antiphon.clients.reach.connection import certified, connected
from antiphon.clients.reach.remarks import FaultError, Remark, Verdict
from antiphon.clients.types import FieldError

__all__ = ["Remark", "Verdict", "first_fault", "reach"]


async def reach(
    endpoint: Endpoint, service: str, *, timeout: float, push_bytes: int = 0
) -> list[Remark]:
    """Reach one service.

    Args:
        endpoint: Where it is.
        service: Its full name, such as ``antiphon.v1.RewardService``.
        timeout: Seconds that each step may take.
        push_bytes: Size of the pushes that it will get; how long one takes is then said.
    """
    return [remark async for remark in _steps(endpoint, service, timeout, push_bytes)]


async def first_fault(endpoint: Endpoint, service: str, *, timeout: float) -> Remark | None:
    """What keeps a service from being called; None where nothing does, as far as can be told.

    Args:
        endpoint: Where it is.
        service: Its full name.
        timeout: Seconds that all of it may take.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            steps = _steps(endpoint, service, timeout / 4, 0, speed=False)
            async with contextlib.aclosing(steps):
                async for remark in steps:
                    if remark.verdict is Verdict.FAULT:
                        return remark
    return None


async def _steps(
    endpoint: Endpoint, service: str, timeout: float, push_bytes: int, *, speed: bool = True
) -> AsyncGenerator[Remark, None]:
    channel = None
    try:
        yield await connected(endpoint, timeout)
        if endpoint.tls is not None:
            yield await certified(endpoint, timeout)
        channel = open_channel(endpoint)
        health = await calls.health(channel, endpoint, service, timeout)
        yield health
        remarks, latency = await calls.identity(channel, endpoint, service, timeout)
        for remark in remarks:
            yield remark
        if not speed:
            return
        if health.verdict is Verdict.OK:
            latency = await calls.latency(channel, service, timeout)
        yield calls.speed(latency)
        if health.verdict is Verdict.OK and push_bytes:
            yield await calls.upload(channel, latency, push_bytes, timeout)
    except FaultError as fault:
        yield fault.remark
    except FieldError as error:
        yield Remark("settings", Verdict.FAULT, str(error))
    except grpc.aio.AioRpcError as error:
        detail = f"{error.code().name}: {error.details()}"
        yield Remark("calls", Verdict.FAULT, detail, "read the service's log")
    finally:
        if channel is not None:
            await channel.close(None)
