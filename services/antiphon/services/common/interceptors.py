"""What every call passes through, from outermost to innermost.

`Streams` (interception), `Metrics`, `Traces`, `Errors`, `Auth` (access), `Admission` (admission),
`Identity` and `Requests` (admission): a call that is refused is counted and answered like every
other, and nothing of its request is read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc

from antiphon.clients import tracing
from antiphon.clients.identity import TIME_KEY, VERSION_KEY, version
from antiphon.services.common.errors import status_of
from antiphon.services.common.interception import (
    HEALTH_PREFIX,
    Call,
    Context,
    Interceptor,
    Method,
)
from antiphon.services.common.prometheus import RpcMetrics

logger = logging.getLogger(__name__)

_UNCOUNTED_IN_FLIGHT = (HEALTH_PREFIX, "/grpc.reflection.")


class Metrics(Interceptor):
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


class Traces(Interceptor):
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


class Errors(Interceptor):
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
        else:
            return
        # Here, where the error is gone: its frames hold the request.
        await context.abort(parts.code, parts.message, parts.trailers())


class Identity(Interceptor):
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


def _code_name(error: BaseException, context: Context) -> str:
    """How a call that raised ended. The context knows what it was aborted with."""
    code = context.code()
    for known in grpc.StatusCode:
        if code in (known, known.value[0]) and known is not grpc.StatusCode.OK:
            return str(known.name)
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        left = context.time_remaining()
        late = left is not None and left <= 0
        return (grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED).name
    return str(grpc.StatusCode.UNKNOWN.name)
