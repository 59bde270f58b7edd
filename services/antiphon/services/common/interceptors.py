"""What every call passes through: counting, errors to statuses, the token.

A call goes through `Metrics`, `Traces`, `Errors`, `Auth`, `Identity` and `Requests`, so that a
refused token and a request that cannot be read are counted and answered like every other error.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

from antiphon.clients import tracing
from antiphon.clients.identity import TIME_KEY, VERSION_KEY, version
from antiphon.clients.types import FieldError
from antiphon.services.common.errors import ServiceError, status_of
from antiphon.services.common.prometheus import RpcMetrics

logger = logging.getLogger(__name__)

HEALTH_PREFIX = "/grpc.health.v1.Health/"
_UNCOUNTED_IN_FLIGHT = (HEALTH_PREFIX, "/grpc.reflection.")

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
# A call seen from around it: runs the handler, whose answers, one or many, come as a stream.
Call = Callable[[], AsyncGenerator[Any, None]]


@dataclass(frozen=True, slots=True)
class Method:
    """What is called.

    Attributes:
        path: Full name, "/package.Service/Method".
        kind: "unary", "server_stream", "client_stream" or "bidi_stream".
    """

    path: str
    kind: str


class _Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Puts `around` about every known method's handler, whatever its kind."""

    reads_requests = False

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(details)
        if handler is None:
            return handler
        return _wrapped(
            handler,
            functools.partial(self.around, Method(details.method, _kind(handler))),
            self.reads_requests,
        )

    def around(self, method: Method, context: Context, call: Call) -> AsyncGenerator[Any, None]:
        """Runs one call; `call` is to be called once."""
        del method, context
        return call()


class Metrics(_Interceptor):
    """Counts calls and their seconds, and knows how many are in flight."""

    def __init__(self, metrics: RpcMetrics) -> None:
        self._metrics = metrics
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def wait_idle(self) -> None:
        """Returns once no call is in flight, health and reflection aside."""
        await self._idle.wait()

    async def around(
        self, method: Method, context: Context, call: Call
    ) -> AsyncGenerator[Any, None]:
        """Counts one call."""
        _, service, name = method.path.split("/", 2)
        labels = (method.kind, service, name)
        counted = not method.path.startswith(_UNCOUNTED_IN_FLIGHT)
        self._metrics.started.labels(*labels).inc()
        began = time.perf_counter()
        code = grpc.StatusCode.OK.name
        if counted:
            self._in_flight += 1
            self._idle.clear()
        try:
            async with aclosing(call()) as answers:
                async for answer in answers:
                    yield answer
        except BaseException as error:
            code = _code_name(error, context)
            raise
        finally:
            if counted:
                self._in_flight -= 1
                if not self._in_flight:
                    self._idle.set()
            self._metrics.handled.labels(*labels, code).inc()
            self._metrics.seconds.labels(*labels).observe(time.perf_counter() - began)


class Traces(_Interceptor):
    """Makes each call a span of its caller's trace."""

    async def around(
        self, method: Method, context: Context, call: Call
    ) -> AsyncGenerator[Any, None]:
        """Traces one call."""
        metadata = [(key, value) for key, value in context.invocation_metadata() or ()]
        with tracing.server_span(method.path.lstrip("/"), metadata):
            async with aclosing(call()) as answers:
                async for answer in answers:
                    yield answer


class Errors(_Interceptor):
    """Turns what a handler raises into a status with rich details; logs what is unexpected."""

    def __init__(self, *, expose_tracebacks: bool) -> None:
        self._expose_tracebacks = expose_tracebacks

    async def around(
        self, method: Method, context: Context, call: Call
    ) -> AsyncGenerator[Any, None]:
        """Runs one call."""
        try:
            async with aclosing(call()) as answers:
                async for answer in answers:
                    yield answer
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            parts = status_of(error, expose_tracebacks=self._expose_tracebacks)
            if parts.code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
                logger.exception("%s failed", method.path)
            else:
                logger.info("%s answered %s: %s", method.path, parts.code.name, error)
            await context.abort(parts.code, parts.message, parts.trailers())


class Auth(_Interceptor):
    """Lets in callers that know the token; health stays open to probes.

    Args:
        token: Gives the token that counts now.
    """

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    async def around(
        self, method: Method, context: Context, call: Call
    ) -> AsyncGenerator[Any, None]:
        """Checks one call's token."""
        if not method.path.startswith(HEALTH_PREFIX):
            self._check(context)
        async with aclosing(call()) as answers:
            async for answer in answers:
                yield answer

    def _check(self, context: Context) -> None:
        given = [v for k, v in context.invocation_metadata() or () if k == "authorization"]
        if not given:
            raise ServiceError(
                grpc.StatusCode.UNAUTHENTICATED,
                "no token came; send metadata 'authorization: Bearer TOKEN' (token_file of the "
                "endpoint)",
            )
        value = given[-1]
        given_bytes = value if isinstance(value, bytes) else value.encode()
        if not hmac.compare_digest(given_bytes, f"Bearer {self._token()}".encode()):
            raise ServiceError(
                grpc.StatusCode.UNAUTHENTICATED,
                "the token is not this server's; compare the caller's token file with the server's",
            )


class Identity(_Interceptor):
    """Tells callers that are let in the server's version and clock, before the answer."""

    async def around(
        self, method: Method, context: Context, call: Call
    ) -> AsyncGenerator[Any, None]:
        """Answers one call."""
        if not method.path.startswith(HEALTH_PREFIX):
            now = f"{time.time():.6f}"
            await context.send_initial_metadata(((VERSION_KEY, version()), (TIME_KEY, now)))
        async with aclosing(call()) as answers:
            async for answer in answers:
                yield answer


class Requests(_Interceptor):
    """Makes bytes that are no message of the request's type an error like others; innermost."""

    reads_requests = True


class _Malformed:
    """Stands for a request that is no message of its type."""

    def __init__(self, error: Exception) -> None:
        self.error = FieldError(
            "request", f"bytes that are no message ({error})", "a message of the RPC's request type"
        )


def _lenient(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    if deserialize is None:
        return None

    def attempt(data: bytes) -> Any:
        try:
            return deserialize(data)
        except Exception as error:  # noqa: BLE001 - protobuf's error types differ by build
            return _Malformed(error)

    return attempt


def _well_formed(request: Any) -> Any:
    if isinstance(request, _Malformed):
        raise request.error
    return request


async def _all_well_formed(requests: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
    async for request in requests:
        yield _well_formed(request)


def _kind(handler: Handler) -> str:
    if handler.request_streaming:
        return "bidi_stream" if handler.response_streaming else "client_stream"
    return "server_stream" if handler.response_streaming else "unary"


def _wrapped(
    handler: Handler,
    around: Callable[[Context, Call], AsyncGenerator[Any, None]],
    reads_requests: bool,
) -> Handler:
    kind = _kind(handler)
    behaviour: Any = {
        "unary": handler.unary_unary,
        "server_stream": handler.unary_stream,
        "client_stream": handler.stream_unary,
        "bidi_stream": handler.stream_stream,
    }[kind]

    async def answers(request: Any, context: Context) -> AsyncGenerator[Any, None]:
        if reads_requests:
            check: Any = _all_well_formed if handler.request_streaming else _well_formed
            request = check(request)
        result = behaviour(request, context)
        if hasattr(result, "__aiter__"):
            async with aclosing(result) as stream:
                async for answer in stream:
                    yield answer
        else:
            answer = await result
            if not handler.response_streaming:
                yield answer

    async def stream(request: Any, context: Context) -> AsyncGenerator[Any, None]:
        call = functools.partial(answers, request, context)
        async with aclosing(around(context, call)) as results:
            async for answer in results:
                yield answer

    async def single(request: Any, context: Context) -> Any:
        async with aclosing(stream(request, context)) as results:
            (result,) = [result async for result in results]
            return result

    make: Any = {
        "unary": grpc.unary_unary_rpc_method_handler,
        "server_stream": grpc.unary_stream_rpc_method_handler,
        "client_stream": grpc.stream_unary_rpc_method_handler,
        "bidi_stream": grpc.stream_stream_rpc_method_handler,
    }[kind]
    deserialize = handler.request_deserializer
    wrapped: Handler = make(
        stream if handler.response_streaming else single,
        request_deserializer=_lenient(deserialize) if reads_requests else deserialize,
        response_serializer=handler.response_serializer,
    )
    return wrapped


def _code_name(error: BaseException, context: Context) -> str:
    """How a call that raised ended. The context knows what it was aborted with."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        left = context.time_remaining()
        late = left is not None and left <= 0
        return (grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED).name
    code = context.code()
    for known in grpc.StatusCode:
        if code in (known, known.value[0]) and known is not grpc.StatusCode.OK:
            return str(known.name)
    return str(grpc.StatusCode.UNKNOWN.name)
