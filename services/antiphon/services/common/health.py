# ruff: noqa: ARG002, N802 - names and arguments of the methods are those of gRPC.
"""`grpc.health.v1`, all of it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health(HealthServicer):  # type: ignore[misc]
    """What a server says of itself and of its services; whoever can reach it may ask.

    Args:
        services: Full names of the services; "" stands for the server.
    """

    def __init__(self, services: tuple[str, ...]) -> None:
        super().__init__()
        self._names = ("", *services)
        self._watches: set[asyncio.Task[Any]] = set()
        self._over = False

    async def set_serving(self, serving: bool) -> None:
        """Say the same of all."""
        for name in self._names:
            await self.set(name, _SERVING if serving else _NOT_SERVING)

    def end_watches(self) -> None:
        """End the streams of all who watch."""
        self._over = True
        for watch in self._watches:
            watch.cancel()

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """What is said of a service, and whatever is said later, until `end_watches`."""
        watch = asyncio.current_task()
        assert watch is not None
        self._watches.add(watch)
        try:
            await super().Watch(request, context)
        except asyncio.CancelledError:
            if not self._over:
                raise
            watch.uncancel()
        finally:
            self._watches.discard(watch)

    async def List(
        self,
        request: health_pb2.HealthListRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> health_pb2.HealthListResponse:
        """What is said of each; grpcio's own servicer does not answer this."""
        statuses = {
            name: await self.Check(health_pb2.HealthCheckRequest(service=name), context)
            for name in self._names
        }
        return health_pb2.HealthListResponse(statuses=statuses)
