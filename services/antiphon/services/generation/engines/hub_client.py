"""The Hugging Face inference client, for servers of one's own."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import httpx2
from huggingface_hub import AsyncInferenceClient, set_async_client_factory

_CONNECT_SECONDS = 10.0
_SHORTEST_SECONDS = 0.001
_WITHOUT_TOKEN = "antiphon-without-token"  # noqa: S105 - the name of no token
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


def inference_client(url: str, token: str | None = None) -> AsyncInferenceClient:
    """A client of the server at `url`.

    The library's own sessions refuse every address while HF_HUB_OFFLINE is set, hold a hundred
    connections at most, and send the hub's token where none is given; these do not. A server that
    cannot be reached ends a request with a timeout, and so does one that has not answered when its
    caller gives up (`wanted_until`).

    Args:
        url: Where it is, with scheme.
        token: Sent with every request; None for none.
    """
    set_async_client_factory(_session)
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # It tells every request at INFO.
    return AsyncInferenceClient(url, token=token or _WITHOUT_TOKEN)


@contextmanager
def wanted_until(deadline: float | None) -> Iterator[None]:
    """Requests within the block end with a timeout then.

    Args:
        deadline: On the clock of `time.monotonic`; None waits for as long as it takes.
    """
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def _session() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        event_hooks={"request": [_in_time, _without_token]},
    )


async def _in_time(request: httpx2.Request) -> None:
    # The library asks for no timeout with every request, which overrides a session's. Nothing is
    # read until a whole completion is there, so the time to read is all that is left.
    deadline = _deadline.get()
    left = None if deadline is None else max(deadline - time.monotonic(), _SHORTEST_SECONDS)
    connect = _CONNECT_SECONDS if left is None else min(left, _CONNECT_SECONDS)
    request.extensions["timeout"] = httpx2.Timeout(left, connect=connect, pool=None).as_dict()


async def _without_token(request: httpx2.Request) -> None:
    if request.headers.get("authorization", "").endswith(_WITHOUT_TOKEN):
        del request.headers["authorization"]
