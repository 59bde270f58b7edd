"""What the servicer adds to the service: messages, and an end where the caller goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from tests.integration.services.generation.harness import request

from antiphon.clients.types import Completion, FinishReason, WeightsSpan
from antiphon.clients.wire import generate_request_to_proto
from antiphon.services.generation.servicer import GenerationServicer


class Endless:
    """A service whose first completion comes at once and whose second never does."""

    def __init__(self) -> None:
        self.closed = False

    async def generate(self, _request: Any, *, timeout: float | None) -> AsyncGenerator[Completion]:
        assert timeout == 30.0
        try:
            yield Completion(
                prompt_index=0,
                sample_index=0,
                text="a",
                token_ids=(5,),
                logprobs=(-1.0,),
                kept_sizes=(1,),
                finish_reason=FinishReason.LENGTH,
                prompt_token_ids=(6,),
                weights_spans=(WeightsSpan(0, 0),),
                instance_id="i",
                boot_id="b",
            )
            await asyncio.Event().wait()
        finally:
            self.closed = True


class Context:
    """A call with half a minute left."""

    def time_remaining(self) -> float:
        return 30.0


async def test_a_stream_closed_in_its_middle_ends_the_generation_in_order() -> None:
    """S8: what reads ahead ends first, so that the generation can be closed."""
    service: Any = Endless()
    context: Any = Context()
    stream = GenerationServicer(service).Generate(generate_request_to_proto(request()), context)
    message = await anext(stream)
    assert [completion.text for completion in message.completions] == ["a"]
    await stream.aclose()
    assert service.closed
