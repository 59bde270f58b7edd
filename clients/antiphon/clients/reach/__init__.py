"""Reaching a service step by step: name, connection, TLS, health, token, version, clock, speed.

Each step is a `Remark`. Where a step fails, what is wrong and what to do about it is said, and the
steps that need it are left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from antiphon.clients.endpoint import Endpoint, open_channel
from antiphon.clients.reach import calls
from antiphon.clients.reach.connection import certified, connected
from antiphon.clients.reach.remarks import FaultError, Remark, Verdict
from antiphon.clients.types import FieldError

__all__ = ["Remark", "Verdict", "reach"]


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


async def _steps(
    endpoint: Endpoint, service: str, timeout: float, push_bytes: int
) -> AsyncIterator[Remark]:
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
        if health.verdict is Verdict.OK:
            latency = await calls.latency(channel, service, timeout)
        yield calls.speed(latency)
        if health.verdict is Verdict.OK and push_bytes:
            yield await calls.upload(channel, latency, push_bytes, timeout)
    except FaultError as fault:
        yield fault.remark
    except FieldError as error:
        yield Remark("settings", Verdict.FAULT, str(error))
    finally:
        if channel is not None:
            await channel.close(None)
