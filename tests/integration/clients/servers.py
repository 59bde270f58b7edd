"""Real gRPC servers on free ports or unix sockets, with servicers that a test scripts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from antiphon.clients.retry import RetryPolicy

QUICK = RetryPolicy(attempts=4, initial_backoff=0.001, max_backoff=0.002)
"""Retries without pauses worth waiting for."""

Register = Callable[[grpc.aio.Server], None]


@contextlib.asynccontextmanager
async def serving(
    register: Register, address: str = "127.0.0.1:0", options: list[tuple[str, Any]] | None = None
) -> AsyncIterator[str]:
    """Serve at `address` ("unix:…" or with port 0 for a free one); yields where."""
    server = grpc.aio.server(options=options)
    register(server)
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield address if address.startswith("unix:") else f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def own_address(transport: str, folder: Path) -> str:
    """Where to serve for a test that runs over "tcp" and "unix"."""
    return f"unix:{folder}/s" if transport == "unix" else "127.0.0.1:0"


async def abort(
    context: Any,
    code: grpc.StatusCode,
    message: str = "scripted",
    reason: str = "",
    **metadata: str,
) -> None:
    """End a call with a code, and an ErrorInfo where a reason is given."""
    if not reason:
        await context.abort(code, message)
    info = error_details_pb2.ErrorInfo(reason=reason, domain="antiphon.v1", metadata=metadata)
    detail = any_pb2.Any()
    detail.Pack(info)
    status = status_pb2.Status(
        code=code_pb2.Code.Value(code.name), message=message, details=[detail]
    )
    await context.abort_with_status(rpc_status.to_status(status))


async def within(awaitable: Awaitable[Any], seconds: float = 20) -> Any:
    """Wait, but not for ever."""
    async with asyncio.timeout(seconds):
        return await awaitable
