"""How much a server takes on at once, and how long it waits for its callers.

What is over a limit is refused with RESOURCE_EXHAUSTED, which clients try again after a pause,
instead of being queued without end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    aclosing,
    contextmanager,
    suppress,
)
from dataclasses import dataclass
from typing import Any

import grpc

from antiphon.clients.types import FieldError
from antiphon.services.common.errors import ServiceError
from antiphon.services.common.interception import (
    HEALTH_PREFIX,
    Call,
    Context,
    Handler,
    Interceptor,
    Method,
    behaviour_of,
    known_caller,
    remade,
)
from antiphon.services.common.places import Places, PlaceWantedError

READS_AT_ONCE = 4
"""Requests that may arrive at the same time, which bounds the memory of those half here."""
HEALTH_BYTES = 4096
"""Most bytes of a health check, which holds a service's name; anybody may send one."""
PATIENCE = 1 / 12
"""Of `stall_seconds`, for how much the first message of a request may be awaited while others wait
to be read."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server takes.

    Attributes:
        calls: Most calls at once; beside them as many health checks are taken of known callers, and
            as many of others.
        request_bytes: Most bytes of the requests of calls under way.
        stall_seconds: How long a caller may keep the server waiting for a message of its request,
            or for room to send the next one of an answer.
    """

    calls: int
    request_bytes: int
    stall_seconds: float


class Admission(Interceptor):
    """Refuses calls beyond the most at once, before their requests are read.

    Args:
        limits: What is taken.
        of_one_host: Most calls at once of one host, where all callers are strangers.
    """

    def __init__(self, limits: Limits, *, of_one_host: int | None = None) -> None:
        self._most = limits.calls
        self._of_one_host = of_one_host
        self._under_way = Counter[str]()

    async def around(
        self, method: Method, context: Context, call: Call
    ) -> AsyncGenerator[Any, None]:
        """Takes one call or refuses it."""
        with ExitStack() as counted:
            counted.enter_context(self._counted(_kind(method), self._most, "calls"))
            if self._of_one_host is not None:
                host = _host(context.peer())
                counted.enter_context(self._counted(host, self._of_one_host, f"calls of {host}"))
            async with aclosing(call()) as answers:
                async for answer in answers:
                    yield answer

    @contextmanager
    def _counted(self, kind: str, most: int, what: str) -> Iterator[None]:
        if self._under_way[kind] >= most:
            raise _exhausted(f"{most} {what} are under way, as many as are taken at once")
        self._under_way[kind] += 1
        try:
            yield
        finally:
            self._under_way[kind] -= 1
            if not self._under_way[kind]:
                del self._under_way[kind]


class Requests(Interceptor):
    """Reads requests within bounds of memory and time; innermost.

    Bytes that are no message of the request's type are an error like others.

    Args:
        limits: What is taken.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._bytes = 0
        # Health does not wait for others' requests.
        self._of_health, self._of_others = (
            Places(READS_AT_ONCE, PATIENCE * limits.stall_seconds) for _ in range(2)
        )

    def wrapped(self, handler: Handler, method: Method) -> Handler:
        """The handler; it gets messages, where what comes to it is a stream of bytes."""
        behaviour = behaviour_of(handler)
        parse = handler.request_deserializer or bytes
        health = method.path.startswith(HEALTH_PREFIX)
        places = self._of_health if health else self._of_others

        async def answers(stream: AsyncIterator[bytes], context: Context) -> AsyncGenerator[Any]:
            peer = context.peer()
            caller = known_caller.get() or _host(peer)
            place = places.place(caller, peer, self.limits.stall_seconds)
            async with aclosing(_Messages(self, stream, parse, place, health=health)) as messages:
                request: Any = messages if handler.request_streaming else await messages.only()
                async with aclosing(behaviour(request, context)) as results:
                    async for result in results:
                        yield result

        return remade(handler, answers, deserialize=None)

    def hold(self, size: int) -> None:
        """Counts bytes of a request as here.

        Raises:
            ServiceError: RESOURCE_EXHAUSTED; they would be too many.
        """
        most = self.limits.request_bytes
        if self._bytes + size > most:
            raise _exhausted(
                f"a request of {size} bytes beside {self._bytes} of calls under way, wanted at "
                f"most {most} in all"
            )
        self._bytes += size

    def let_go(self, size: int) -> None:
        """Counts them as gone."""
        self._bytes -= size


class _Messages:
    """The messages of one call; each counts as here until the next one is asked for.

    Those of `health` take no room from others: they are small, and do not count.
    """

    def __init__(
        self,
        requests: Requests,
        stream: AsyncIterator[bytes],
        parse: Callable[[bytes], Any],
        place: AbstractAsyncContextManager[object],
        *,
        health: bool,
    ) -> None:
        self._requests = requests
        self._stream = stream
        self._parse = parse
        self._place: AbstractAsyncContextManager[object] | None = place
        self._health = health
        self._held = 0
        self._closed = False

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> Any:
        self._let_go()
        data = await self._read()
        if data is None:
            raise StopAsyncIteration
        size = len(data)
        if self._health:
            if size > HEALTH_BYTES:
                raise FieldError("request", f"{size} bytes", f"a health check of {HEALTH_BYTES}")
        elif not self._closed:
            self._requests.hold(size)
            self._held = size
        return _parsed(data, self._parse)

    async def only(self) -> Any:
        """The message of a request that is no stream; nothing else is read."""
        message = await anext(self, None)
        if message is None:
            raise FieldError("request", "nothing", "a message")
        await self._drop_last()
        return message

    async def aclose(self) -> None:
        """Nothing of it is needed any more, whoever may still be reading."""
        self._closed = True
        self._let_go()
        await self._drop_last()

    async def _drop_last(self) -> None:
        # gRPC's stream and its generator hold each other, and the last message with them, until the
        # collector finds them.
        generator: Any = aiter(self._stream)
        with suppress(RuntimeError):  # somebody is reading
            await generator.aclose()

    def _let_go(self) -> None:
        self._requests.let_go(self._held)
        self._held = 0

    async def _read(self) -> bytes | None:
        seconds = self._requests.limits.stall_seconds
        # Later messages of a stream are the sender's one by one.
        place, self._place = self._place, None
        try:
            async with place or asyncio.timeout(seconds):
                return await anext(self._stream, None)
        except PlaceWantedError as error:
            raise _exhausted(
                f"the request has not come whole within {PATIENCE * seconds:g} s, while others "
                "wait to send theirs"
            ) from error
        except TimeoutError as error:
            raise ServiceError(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"nothing of the request has come for {seconds:g} s; send it without such pauses",
            ) from error


def _kind(method: Method) -> str:
    """What a call is counted with. Health is open to all: strangers keep out strangers alone."""
    if not method.path.startswith(HEALTH_PREFIX):
        return "other"
    return "health of the known" if known_caller.get() else "health"


def _host(peer: str) -> str:
    """Of a peer as gRPC writes it, "ipv4:10.0.0.1:4321", without the connection's port."""
    return peer if peer.startswith("unix:") else peer.rpartition(":")[0]


def _parsed(data: bytes, parse: Callable[[bytes], Any]) -> Any:
    try:
        return parse(data)
    except Exception as error:
        raise FieldError(
            "request", f"bytes that are no message ({error})", "a message of the RPC's request type"
        ) from error


def _exhausted(what: str) -> ServiceError:
    return ServiceError(
        grpc.StatusCode.RESOURCE_EXHAUSTED, f"{what}; call again later, or fewer at once"
    )
