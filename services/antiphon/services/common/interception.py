"""Putting code around every call of a server, whatever the kind of its method."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import grpc

HEALTH_PREFIX = "/grpc.health.v1.Health/"
_GOODBYE_SECONDS = 10.0

known_caller: ContextVar[str] = ContextVar("known_caller", default="")
"""Who makes the call under way, where the server knows its callers."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
# A call seen from around it: runs the handler, whose answers, one or many, come as a stream.
Call = Callable[[], AsyncGenerator[Any, None]]
Behaviour = Callable[[Any, Context], AsyncGenerator[Any, None]]


@dataclass(frozen=True, slots=True)
class Method:
    """What is called.

    Attributes:
        path: Full name, "/package.Service/Method".
        kind: "unary", "server_stream", "client_stream" or "bidi_stream".
    """

    path: str
    kind: str


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Puts `around` about every known method's handler, whatever its kind."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Gives a method's handler as it is seen from around this."""
        handler = await continuation(details)
        return handler and self.wrapped(handler, Method(details.method, _kind(handler)))

    def wrapped(self, handler: Handler, method: Method) -> Handler:
        """The handler with `around` about it."""
        behaviour = behaviour_of(handler)

        def answers(request: Any, context: Context) -> AsyncGenerator[Any, None]:
            return self.around(method, context, functools.partial(behaviour, request, context))

        return remade(handler, answers)

    def around(self, method: Method, context: Context, call: Call) -> AsyncGenerator[Any, None]:
        """Runs one call; `call` is to be called once."""
        del method, context
        return call()


class Streams(Interceptor):
    """Makes every request a stream and writes every answer in time; outermost.

    So a message is read when the innermost interceptor asks for it, once the others have let the
    call in, and not before.

    Args:
        stall_seconds: How long a caller may leave an answer unread.
    """

    def __init__(self, stall_seconds: float) -> None:
        self._stall_seconds = stall_seconds

    def wrapped(self, handler: Handler, method: Method) -> Handler:
        """The handler, with a stream for its request."""
        del method
        behaviour = behaviour_of(handler)
        codecs = (handler.request_deserializer, handler.response_serializer)

        async def write(request: AsyncIterator[Any], context: Context) -> None:
            async with aclosing(behaviour(request, context)) as answers:
                async for answer in answers:
                    if not await self._written(answer, context):
                        # Before the interceptors within end, so that they know how it ended.
                        context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
                        break
                else:
                    return
            await _let_go(context, self._stall_seconds)

        async def single(request: AsyncIterator[Any], context: Context) -> Any:
            async with aclosing(behaviour(request, context)) as answers:
                (answer,) = [answer async for answer in answers]
                return answer

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(write, *codecs)
        return grpc.stream_unary_rpc_method_handler(single, *codecs)

    async def _written(self, answer: Any, context: Context) -> bool:
        try:
            async with asyncio.timeout(self._stall_seconds):
                await context.write(answer)
        except TimeoutError:
            return False
        return True


async def _let_go(context: Context, seconds: float) -> NoReturn:
    """Ends a call whose caller does not read; it is told so where it reads on soon."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_GOODBYE_SECONDS):
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"nothing of the answer was read for {seconds:g} s; read on, or ask for less",
            )
    raise asyncio.CancelledError


def behaviour_of(handler: Handler) -> Behaviour:
    """What a handler does, its answers always a stream."""
    method: Any = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )

    async def answers(request: Any, context: Context) -> AsyncGenerator[Any, None]:
        result = method(request, context)
        if hasattr(result, "__aiter__"):
            async with aclosing(result) as stream:
                async for answer in stream:
                    yield answer
        else:
            answer = await result
            if not handler.response_streaming:
                yield answer

    return answers


def remade(handler: Handler, behaviour: Behaviour, deserialize: Any = ...) -> Handler:
    """A handler of the same kind that does something else.

    Args:
        handler: Gives kind and codecs.
        behaviour: What the new one does.
        deserialize: Makes requests of bytes, where it is not the handler's.
    """

    async def single(request: Any, context: Context) -> Any:
        async with aclosing(behaviour(request, context)) as answers:
            (answer,) = [answer async for answer in answers]
            return answer

    make: Any = {
        "unary": grpc.unary_unary_rpc_method_handler,
        "server_stream": grpc.unary_stream_rpc_method_handler,
        "client_stream": grpc.stream_unary_rpc_method_handler,
        "bidi_stream": grpc.stream_stream_rpc_method_handler,
    }[_kind(handler)]
    made: Handler = make(
        behaviour if handler.response_streaming else single,
        request_deserializer=handler.request_deserializer if deserialize is ... else deserialize,
        response_serializer=handler.response_serializer,
    )
    return made


def _kind(handler: Handler) -> str:
    if handler.request_streaming:
        return "bidi_stream" if handler.response_streaming else "client_stream"
    return "server_stream" if handler.response_streaming else "unary"
