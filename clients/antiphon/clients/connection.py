"""One channel to one service, and how a call on it is made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from antiphon.clients import metrics, tracing
from antiphon.clients.channel_options import PING_SECONDS
from antiphon.clients.endpoint import Endpoint, Metadata, open_channel
from antiphon.clients.errors import CallError, ContractError, from_rpc_error
from antiphon.clients.retry import RetryPolicy, call_with_retries
from antiphon.clients.types import FieldError
from antiphon.clients.waiting import waiting_for

T = TypeVar("T")

NOT_LET_IN = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class Client:
    """What the clients of all services share: a channel, retries, and how errors look.

    Args:
        endpoint: Where the service is; a plain address will do.
        retry: How often transient failures are tried again.
        service: Full name of the gRPC service.
        ping_seconds: Pause between keepalive pings.
    """

    def __init__(
        self,
        endpoint: Endpoint | str,
        *,
        retry: RetryPolicy | None = None,
        service: str,
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        self.endpoint = Endpoint.of(endpoint)
        self.retry = retry or RetryPolicy()
        self._service = service
        self._channel = open_channel(self.endpoint, ping_seconds=ping_seconds, service=service)

    @property
    def address(self) -> str:
        """Where the service is."""
        return self.endpoint.address

    @property
    def service(self) -> str:
        """Full name of the gRPC service."""
        return self._service

    async def health(self, timeout: float) -> str:
        """What the service says of its health, SERVING or NOT_SERVING for example.

        A server without health counts as one that serves.

        Raises:
            CallError: It cannot be reached or refuses; NOT_FOUND: the server does not know the
                service.
        """
        stub = health_pb2_grpc.HealthStub(self._channel)
        request = health_pb2.HealthCheckRequest(service=self._service)
        try:
            with waiting_for(f"Check at {self.address}"):
                answer = await stub.Check(
                    request, timeout=timeout, metadata=self.endpoint.metadata()
                )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return "SERVING"
            raise self._error(error, "Check") from error
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    async def _check(
        self, harmless: Callable[[], Awaitable[Any]], timeout: float, *, needed: bool = False
    ) -> None:
        """Find out whether the service can be called at all.

        Its health may say what it likes; `harmless` makes a call of it that changes nothing, of a
        method that every such service has where it is `needed`.

        Raises:
            CallError: It cannot be reached, is still starting, or does not let the caller in.
            FieldError: Another service answers there.
        """
        known = True
        try:
            await self.health(timeout)
        except CallError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND and error.code not in NOT_LET_IN:
                raise
            known = error.code is not grpc.StatusCode.NOT_FOUND
        try:
            await harmless()
        except CallError as error:
            if error.transient or error.code in NOT_LET_IN:
                raise
            if error.code is grpc.StatusCode.UNIMPLEMENTED and (needed or not known):
                raise FieldError(self.address, "another service", self._service) from error

    async def watch_health(self) -> AsyncGenerator[bool, None]:
        """Yield whether the service serves, now and whenever that changes.

        It waits for a service that cannot be reached, and never ends by itself: keepalive ends it
        where the other side is gone. A server without health counts as one that serves.

        Raises:
            CallError: The connection is lost, or the call is refused.
        """
        stub = health_pb2_grpc.HealthStub(self._channel)
        request = health_pb2.HealthCheckRequest(service=self._service)
        call = stub.Watch(request, metadata=self.endpoint.metadata(), wait_for_ready=True)
        try:
            async for answer in call:
                yield answer.status == health_pb2.HealthCheckResponse.SERVING
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise self._error(error, "Watch") from error
            yield True
            await self._channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the channel; calls under way are cancelled."""
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _error(self, error: grpc.aio.AioRpcError, rpc: str) -> CallError:
        return from_rpc_error(error, address=self.address, rpc=rpc)

    def _checked(self, rpc: str, convert: Callable[[Any], T], answer: Any) -> T:
        """Convert an answer; a field that breaks the contract names service and method."""
        try:
            return convert(answer)
        except FieldError as error:
            raise ContractError(self.address, rpc, str(error)) from error

    @contextmanager
    def _attempt(self, rpc: str, kind: metrics.CallKind = "unary") -> Iterator[Metadata]:
        """One attempt at a call, counted and traced; gives the metadata that it carries."""
        name = f"{self._service}/{rpc}"
        with (
            waiting_for(f"{rpc} at {self.address}"),
            metrics.counted(kind, self._service, rpc),
            tracing.client_span(name) as trace,
        ):
            yield (*self.endpoint.metadata(), *trace)

    async def _once(self, method: Any, rpc: str, request: Any, timeout: float) -> Any:
        try:
            with self._attempt(rpc) as metadata:
                return await method(request, timeout=timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise self._error(error, rpc) from error

    async def _call(
        self,
        method: Any,
        request: Any,
        convert: Callable[[Any], T],
        *,
        rpc: str,
        timeout: float,
        retry: RetryPolicy | None = None,
    ) -> T:
        """Make a unary call with retries; `timeout` is the deadline of each attempt."""
        answer = await call_with_retries(
            lambda _: self._once(method, rpc, request, timeout), retry or self.retry
        )
        return self._checked(rpc, convert, answer)
