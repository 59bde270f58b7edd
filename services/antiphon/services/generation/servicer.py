"""`antiphon.v1.GenerationService` on the wire: convert, call, convert back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc

from antiphon.clients import wire
from antiphon.clients.types import Completion, WeightsChunk
from antiphon.services.generation.service import GenerationService
from antiphon.services.generation.together import together
from antiphon.services.generation.weights_receiver import Part
from antiphon.v1 import generation_pb2 as pb
from antiphon.v1 import generation_pb2_grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

SERVICE_NAME: str = pb.DESCRIPTOR.services_by_name["GenerationService"].full_name

MESSAGE_TOKENS = 16_384
"""Tokens from which a message is full; with all that is told of each it is half a megabyte."""


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Puts a `GenerationService` on the wire."""

    def __init__(self, service: GenerationService) -> None:
        self._service = service

    async def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """Samples completions."""
        asked = wire.generate_request_from_proto(request)
        async with (
            aclosing(
                self._service.generate(asked, timeout=context.time_remaining())
            ) as completions,
            aclosing(together(completions, _tokens, most=MESSAGE_TOKENS)) as parts,
        ):
            async for some in parts:
                yield pb.GenerateResponse(completions=map(wire.completion_to_proto, some))

    async def PushWeights(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.PushWeightsRequest | WeightsChunk],
        _context: Context,
    ) -> pb.PushWeightsResponse:
        """Replaces the weights."""
        result = await self._service.push_weights(_parts(request_iterator))
        return wire.push_result_to_proto(result)

    async def GetPushStatus(  # noqa: N802
        self, request: pb.GetPushStatusRequest, _context: Context
    ) -> pb.GetPushStatusResponse:
        """Says how far a push has come."""
        query = wire.push_status_request_from_proto(request)
        return wire.push_status_to_proto(self._service.push_status(query))

    async def GetModelInfo(  # noqa: N802
        self, _request: pb.GetModelInfoRequest, _context: Context
    ) -> pb.GetModelInfoResponse:
        """Says what runs here."""
        return wire.model_info_to_proto(self._service.model_info())


def add_to_server(servicer: GenerationServicer, server: grpc.aio.Server) -> None:
    """Adds the servicer to a server, which reads the chunks of pushes without copying them."""
    push = grpc.stream_unary_rpc_method_handler(
        servicer.PushWeights,
        request_deserializer=wire.push_request_from_bytes,
        response_serializer=pb.PushWeightsResponse.SerializeToString,
    )
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    # Of two handlers of a method the one that was registered last counts.
    register: Any = server  # Its stubs do not know the method.
    register.add_registered_method_handlers(SERVICE_NAME, {"PushWeights": push})


async def _parts(
    messages: AsyncIterator[pb.PushWeightsRequest | WeightsChunk],
) -> AsyncGenerator[Part]:
    async for message in messages:
        if isinstance(message, WeightsChunk):
            yield message
        else:
            yield wire.push_request_from_proto(message)


def _tokens(completion: Completion) -> int:
    return len(completion.prompt_token_ids) + len(completion.token_ids)
