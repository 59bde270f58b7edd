"""A TLS channel that follows its files: a renewed certificate counts without a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio

from antiphon.clients.tls_files import stamps_of
from antiphon.clients.types import FieldError

logger = logging.getLogger(__name__)

LONGEST_CALL_SECONDS = 24 * 3600.0
"""How long calls under way may go on when files have changed."""


class RenewedChannel(grpc.aio.Channel):
    """A channel that is opened anew when a file changes; calls under way go on where they are.

    Args:
        files: Looked at before every call.
        open_one: Opens a channel with what the files hold now.

    Raises:
        FieldError: From `open_one`; later on, what was there before goes on being used.
    """

    def __init__(self, files: Sequence[Path], open_one: Callable[[], grpc.aio.Channel]) -> None:
        self._files = files
        self._open = open_one
        self._stamps = stamps_of(self._files)
        self._trouble = ""
        self._channel = open_one()
        self._closing: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    def _now(self) -> grpc.aio.Channel:
        """The channel for the next call."""
        stamps = stamps_of(self._files)
        if stamps != self._stamps:
            try:
                fresh = self._open()
            except FieldError as error:
                if str(error) != self._trouble:  # once, not with every call
                    logger.warning("%s; the certificate from before is used", error)
                self._trouble = str(error)
            else:
                self._trouble = ""
                old, self._channel = self._channel, fresh
                task = asyncio.create_task(old.close(LONGEST_CALL_SECONDS))
                self._closing[task] = old
                task.add_done_callback(lambda done: self._closing.pop(done, None))
                self._stamps = stamps
        return self._channel

    def unary_unary(self, *method: Any, **codecs: Any) -> Any:
        """A method of one request and one answer."""
        return lambda *a, **k: self._now().unary_unary(*method, **codecs)(*a, **k)

    def unary_stream(self, *method: Any, **codecs: Any) -> Any:
        """A method of one request and a stream of answers."""
        return lambda *a, **k: self._now().unary_stream(*method, **codecs)(*a, **k)

    def stream_unary(self, *method: Any, **codecs: Any) -> Any:
        """A method of a stream of requests and one answer."""
        return lambda *a, **k: self._now().stream_unary(*method, **codecs)(*a, **k)

    def stream_stream(self, *method: Any, **codecs: Any) -> Any:
        """A method of streams both ways."""
        return lambda *a, **k: self._now().stream_stream(*method, **codecs)(*a, **k)

    async def close(self, grace: float | None = None) -> None:
        """Closes it; without `grace`, in seconds, calls under way are cancelled."""
        for task, old in list(self._closing.items()):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await old.close(grace)
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """How the connection is."""
        return self._now().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Returns once the connection is otherwise."""
        await self._now().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Returns once it is connected."""
        await self._now().channel_ready()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
