"""The client of a generation service: sampling and weights of one replica."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal

import grpc.aio

from antiphon.clients.channel_options import PING_SECONDS
from antiphon.clients.client_stream import send_stream
from antiphon.clients.connection import Client
from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.push import CHUNK_BYTES, push_weights
from antiphon.clients.retry import Attempts, RetryPolicy
from antiphon.clients.types import (
    Completion,
    GenerateRequest,
    LoadedWeights,
    ModelInfo,
    PromptSamples,
    PushHeader,
    PushKind,
    PushResult,
    PushStatus,
    StoredChunks,
)
from antiphon.clients.wire import (
    PushQuery,
    completion_from_proto,
    generate_request_to_proto,
    model_info_from_proto,
    push_status_from_proto,
    push_status_request_to_proto,
)
from antiphon.v1 import generation_pb2 as pb
from antiphon.v1.generation_pb2_grpc import GenerationServiceStub

Sample = tuple[int, int]
"""Prompt index and sample index of a completion within its request."""


class GenerationClient(Client):
    """Calls one replica of a generation service.

    Args:
        endpoint: Where the replica is; a plain address will do.
        retry: How often transient failures are tried again.
    """

    def __init__(self, endpoint: Endpoint | str, *, retry: RetryPolicy | None = None) -> None:
        super().__init__(
            endpoint,
            retry=retry,
            service="antiphon.v1.GenerationService",
            ping_seconds=PING_SECONDS,
        )
        self._stub = GenerationServiceStub(self._channel)  # type: ignore[no-untyped-call]
        # Its messages come serialised: see `antiphon.clients.wire.chunk`.
        self._push: Any = self._channel.stream_unary(
            f"/{self._service}/PushWeights",
            request_serializer=None,
            response_deserializer=pb.PushWeightsResponse.FromString,
        )

    async def get_model_info(
        self, timeout: float, *, retry: RetryPolicy | None = None
    ) -> ModelInfo:
        """Ask what the service runs; `timeout` in seconds, for each attempt.

        `retry` takes the place of the client's own policy.
        """
        return await self._call(
            self._stub.GetModelInfo,
            pb.GetModelInfoRequest(),
            model_info_from_proto,
            rpc="GetModelInfo",
            timeout=timeout,
            retry=retry,
        )

    async def generate(
        self,
        request: GenerateRequest,
        *,
        timeout: float,
        resume: Literal["whole", "missing"] = "whole",
        retry: RetryPolicy | None = None,
    ) -> AsyncGenerator[Completion, None]:
        """Sample completions; each is yielded once, as soon as it ends, in any order.

        A stream that breaks for a transient reason is asked again: "whole" repeats the batch, so
        that seeds give the same completions, and leaves out those already yielded; "missing" asks
        for the missing samples only.

        Args:
            request: The prompts and how to sample.
            timeout: Seconds that each attempt may take.
            resume: What to ask for after a break.
            retry: How often, where not as with every other call.

        Raises:
            CallError: A permanent failure, or the attempts are used up. `reason` tells what to
                do, for example WEIGHTS_MISSING.
            ContractError: A completion that was not asked for, came twice, or never came.
        """
        wanted = {
            (prompt, sample)
            for prompt, entry in enumerate(request.prompts)
            for sample in range(len(entry.seeds))
        }
        yielded: set[Sample] = set()
        attempts = Attempts(retry or self.retry)
        while True:
            whole = resume == "whole" or not yielded
            asked, samples = (request, None) if whole else _missing(request, wanted - yielded)
            arrived: set[Sample] = set()
            try:
                stream = self._generate_once(asked, timeout)
                async with contextlib.aclosing(stream):
                    async for answer in stream:
                        completion = answer if samples is None else self._place(answer, samples)
                        sample = (completion.prompt_index, completion.sample_index)
                        self._check_sample(sample, wanted, arrived)
                        arrived.add(sample)
                        if sample not in yielded:
                            yielded.add(sample)
                            attempts.forget_failures()
                            yield completion
            except CallError as error:
                if yielded == wanted:
                    # Every answer is in hand; only the stream's end was lost.
                    return
                await attempts.pause_after(error)
                continue
            if yielded != wanted:
                raise ContractError(
                    self.address,
                    "Generate",
                    f"the stream ended without {_names(wanted - yielded)}",
                )
            return

    async def _generate_once(
        self, request: GenerateRequest, timeout: float
    ) -> AsyncGenerator[Completion, None]:
        try:
            with self._attempt("Generate", "server_stream") as metadata:
                call = self._stub.Generate(
                    generate_request_to_proto(request), timeout=timeout, metadata=metadata
                )
                try:
                    async for response in call:
                        for one in response.completions:
                            yield self._checked("Generate", completion_from_proto, one)
                finally:
                    call.cancel()
        except grpc.aio.AioRpcError as error:
            raise self._error(error, "Generate") from error

    def _place(self, completion: Completion, samples: list[list[Sample]]) -> Completion:
        """Give a completion of a partial request its indices in the whole one."""
        asked = (completion.prompt_index, completion.sample_index)
        try:
            prompt, sample = samples[asked[0]][asked[1]]
        except IndexError:
            raise ContractError(
                self.address, "Generate", f"{_names([asked])} was not asked for"
            ) from None
        return dataclasses.replace(completion, prompt_index=prompt, sample_index=sample)

    def _check_sample(self, sample: Sample, wanted: set[Sample], arrived: set[Sample]) -> None:
        if sample not in wanted:
            raise ContractError(self.address, "Generate", f"{_names([sample])} was not asked for")
        if sample in arrived:
            raise ContractError(self.address, "Generate", f"{_names([sample])} came twice")

    async def get_push_status(self, push: PushHeader | PushQuery, timeout: float) -> PushStatus:
        """Ask how far a push, told by its header or a query, has come, and what is applied."""
        return await self._call(
            self._stub.GetPushStatus,
            push_status_request_to_proto(push),
            push_status_from_proto,
            rpc="GetPushStatus",
            timeout=timeout,
        )

    async def renew_lease(self, loaded: LoadedWeights, timeout: float) -> None:
        """Have the service stay the run's that has pushed what is loaded; `timeout` in seconds.

        Raises:
            CallError: It cannot be reached, or refuses.
        """
        query = PushQuery(
            loaded.run_id, loaded.incarnation, loaded.version, loaded.digest, PushKind.FULL
        )
        await self.get_push_status(query, timeout)

    async def push_weights(
        self,
        header: PushHeader,
        read_tensor: Callable[[int], memoryview],
        *,
        timeout: float,
        chunk_bytes: int = CHUNK_BYTES,
        stored: StoredChunks | None = None,
    ) -> PushResult:
        """Push weights and wait until they are applied.

        A push that breaks for a transient reason goes on where the service says it stopped; one
        that has been applied before is answered at once.

        Args:
            header: What is pushed.
            read_tensor: Gives the bytes of the tensor with that index in `header.tensors`; called
                in a thread, in order, again after a break.
            timeout: Seconds that each attempt may take, the applying included.
            chunk_bytes: Most bytes in one message.
            stored: The chunks, where a store that the service reads holds them. What it does not
                find there, or finds damaged, is sent.

        Raises:
            CallError: A permanent failure, or the attempts are used up.
            ContractError: The service says that it applied something else.
            FieldError: A tensor does not have the bytes that the header says.
        """
        return await push_weights(
            self._push_once,
            self.get_push_status,
            header,
            read_tensor,
            timeout=timeout,
            chunk_bytes=chunk_bytes,
            attempts=Attempts(self.retry),
            address=self.address,
            stored=stored,
        )

    async def _push_once(
        self, messages: AsyncGenerator[bytes, None], timeout: float
    ) -> pb.PushWeightsResponse:
        try:
            with self._attempt("PushWeights", "client_stream") as metadata:
                response: pb.PushWeightsResponse = await send_stream(
                    self._push, messages, timeout=timeout, metadata=metadata
                )
        except grpc.aio.AioRpcError as error:
            raise self._error(error, "PushWeights") from error
        return response


def _missing(
    request: GenerateRequest, missing: set[Sample]
) -> tuple[GenerateRequest, list[list[Sample]]]:
    """The request for `missing` only, and for each of its samples which one it is."""
    samples: dict[int, list[Sample]] = {}
    for prompt, sample in sorted(missing):
        samples.setdefault(prompt, []).append((prompt, sample))
    prompts = tuple(
        PromptSamples(
            request.prompts[prompt].prompt,
            tuple(request.prompts[prompt].seeds[sample] for _, sample in entries),
        )
        for prompt, entries in samples.items()
    )
    return dataclasses.replace(request, prompts=prompts), list(samples.values())


def _names(samples: set[Sample] | list[Sample]) -> str:
    ordered = sorted(samples)
    names = [f"prompt {prompt} sample {sample}" for prompt, sample in ordered[:5]]
    return ", ".join(names) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")
