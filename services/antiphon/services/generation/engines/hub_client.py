"""The Hugging Face inference client, for servers of one's own."""

from __future__ import annotations

import logging

import httpx2
from huggingface_hub import AsyncInferenceClient, set_async_client_factory

# Nothing is read until a whole completion is there.
TIMEOUT = httpx2.Timeout(900.0, connect=10.0, pool=None)
_WITHOUT_TOKEN = "antiphon-without-token"  # noqa: S105 - the name of no token


def inference_client(url: str, token: str | None = None) -> AsyncInferenceClient:
    """A client of the server at `url`.

    The library's own sessions refuse every address while HF_HUB_OFFLINE is set, hold a hundred
    connections at most, and send the hub's token where none is given; these do not. A server that
    cannot be reached, or answers nothing for fifteen minutes, ends a request with a timeout.

    Args:
        url: Where it is, with scheme.
        token: Sent with every request; None for none.
    """
    set_async_client_factory(_session)
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # It tells every request at INFO.
    return AsyncInferenceClient(url, token=token or _WITHOUT_TOKEN)


def _session() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        event_hooks={"request": [_in_time, _without_token]},
    )


async def _in_time(request: httpx2.Request) -> None:
    # The library asks for no timeout with every request, which overrides a session's.
    request.extensions["timeout"] = TIMEOUT.as_dict()


async def _without_token(request: httpx2.Request) -> None:
    if request.headers.get("authorization", "").endswith(_WITHOUT_TOKEN):
        del request.headers["authorization"]
