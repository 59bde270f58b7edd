"""A client-streaming call whose failure is the one that the service told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import grpc
import grpc.aio

from antiphon.clients.endpoint import Metadata

_COVER = "Internal error from Core"
_STATUS_SECONDS = 5.0


async def send_stream(
    method: Any, messages: AsyncGenerator[Any, None], *, timeout: float, metadata: Metadata
) -> Any:
    """Send messages until they end or the service answers, and return its answer.

    Raises:
        grpc.aio.AioRpcError: What the service, or the transport, said.
        Exception: Whatever reading `messages` raised; the call is cancelled then.
    """
    call = method(timeout=timeout, metadata=metadata)
    statuses = _Statuses(call)
    try:
        async with contextlib.aclosing(messages):
            async for message in messages:
                if not await _written(call, message):
                    break
            else:
                if not call.done():
                    await call.done_writing()
        return await call
    except grpc.aio.AioRpcError as error:
        raise await statuses.told(error) from error
    finally:
        call.cancel()


async def _written(call: Any, message: Any) -> bool:
    """Send a message; False where the service has already answered or failed the call."""
    try:
        await call.write(message)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        if not call.done():
            raise
        return False
    return True


class _Statuses:
    """Every status that a call has had.

    When a write meets a call that the service has just ended, gRPC for asyncio puts an internal
    error of its own in place of what the service said, or before it. So all are noted as they
    are set, and the one that is not the cover is what counts.
    """

    def __init__(self, call: Any) -> None:
        self._told: asyncio.Future[grpc.aio.AioRpcError] = asyncio.Future()
        call.add_done_callback(self._note)

    def _note(self, call: Any) -> None:
        details = _now(call.details())
        if details == _COVER or self._told.done():
            return
        self._told.set_result(
            grpc.aio.AioRpcError(
                _now(call.code()),
                grpc.aio.Metadata(),
                _now(call.trailing_metadata()),
                details,
                _now(call.debug_error_string()),
            )
        )

    async def told(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """What the service, or the transport, said: `error` itself unless that is the cover."""
        if error.details() != _COVER:
            return error
        try:
            async with asyncio.timeout(_STATUS_SECONDS):
                return await self._told
        except TimeoutError:
            return error


def _now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that has it at hand, as those of an ended call do."""
    try:
        coroutine.send(None)
    except StopIteration as result:
        return result.value
    raise AssertionError("the call has not ended")
