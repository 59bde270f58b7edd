"""Calls a service the way a check needs it: once, as bytes, with what went wrong as a value."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from google.protobuf.message import Message

from antiphon.clients.connection import Client
from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError
from antiphon.clients.types import JointAction, Task


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one call: a message or an error, and after how many seconds."""

    message: Any
    error: CallError | None
    seconds: float


class Subject(Protocol):
    """What differs between the services that can be checked."""

    service: str
    rpc: str
    response_type: type[Message]

    def request(self, run_id: str, task: Task, actions: Sequence[JointAction]) -> Any:
        """The request message about `actions`."""
        ...

    def answers(self, response: Any) -> list[tuple[str, str]]:
        """Id and what was answered, comparable, of each answer.

        Raises:
            FieldError: An answer breaks the contract.
        """
        ...


class Probe(Client):
    """Calls one service, without retries.

    Args:
        endpoint: Where it is.
        subject: Which service it is.
        timeout: Deadline of a call in seconds.
    """

    def __init__(self, endpoint: Endpoint, subject: Subject, timeout: float) -> None:
        super().__init__(endpoint, service=subject.service)
        self.subject = subject
        self.timeout = timeout

    async def call(
        self,
        request: bytes,
        *,
        service: str | None = None,
        rpc: str | None = None,
        response_type: type[Message] | None = None,
        deadline: float | None = None,
    ) -> Answer:
        """Send `request` as it is; by default to the subject's method."""
        rpc = rpc or self.subject.rpc
        method = self._channel.unary_unary(
            f"/{service or self.subject.service}/{rpc}",
            request_serializer=None,
            response_deserializer=(response_type or self.subject.response_type).FromString,
        )
        start = time.monotonic()
        message, error = None, None
        try:
            message = await self._once(method, rpc, request, deadline or self.timeout)
        except CallError as failure:
            error = failure
        return Answer(message, error, time.monotonic() - start)
