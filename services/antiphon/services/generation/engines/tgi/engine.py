"""The engine that fronts text-generation-inference.

That server samples text only and cannot take new weights, so a push is written as a folder and a
new server is started on it; a version is reported once that server says that it serves it. A server
at an address that somebody else runs keeps the weights it has.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
from torch import Tensor

from antiphon.clients.own_thread import in_own_thread
from antiphon.clients.types import (
    Completion,
    EngineCapabilities,
    FieldError,
    LoadedWeights,
    Prompt,
    PushKind,
    TensorDtype,
    TensorSpec,
)
from antiphon.services.common.errors import ServiceError, StartError
from antiphon.services.generation.choices import Restart
from antiphon.services.generation.engine import (
    ChangedTensor,
    EngineInfo,
    EngineRequest,
    PushedTensor,
)
from antiphon.services.generation.engines.model_folders import ModelFolders
from antiphon.services.generation.engines.samples import Sample, completion_of, side_by_side
from antiphon.services.generation.engines.served_model import ServedModel
from antiphon.services.generation.engines.stored_weights import StoredWeights
from antiphon.services.generation.engines.tgi.client import ServerGoneError, check_sampling
from antiphon.services.generation.engines.tgi.server import RunningServer, found, launched
from antiphon.services.generation.engines.tgi.supervisor import Supervisor
from antiphon.services.generation.metrics import GenerationMetrics, generation_metrics

_ATTEMPTS = 10
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 5.0


@dataclass(frozen=True, slots=True)
class TgiOptions:
    """What to front.

    Attributes:
        model: Folder or hub name of the model.
        tokenizer: Where its tokenizer is, if not there.
        command: How to start a server, with ``{model}`` and ``{port}``; None where `address` says
            where one runs.
        address: Of a server that somebody else runs; its weights are fixed.
        weights: False begins with weights that must not be sampled, and waits for a push.
        weights_dtype: Number format that starting weights are rounded to.
        restart: Whether a push starts the new server beside the old one, or after its end.
        start_timeout: Seconds that a server may take to become healthy.
        work_folder: Where versions are written; None for a temporary folder.
    """

    model: str
    tokenizer: str | None = None
    command: str | None = None
    address: str | None = None
    weights: bool = True
    weights_dtype: TensorDtype = TensorDtype.BFLOAT16
    restart: Restart = "rolling"
    start_timeout: float = 600.0
    work_folder: str | None = None


class TgiEngine:
    """Samples from a text-generation-inference server.

    Args:
        served: What the service knows of the model.
        supervisor: Has the server.
        stored: The weights as folders; None where they are fixed.
        metrics: Where it counts.
    """

    def __init__(
        self,
        served: ServedModel,
        supervisor: Supervisor,
        stored: StoredWeights | None,
        *,
        metrics: GenerationMetrics | None = None,
    ) -> None:
        self._served = served
        self._supervisor = supervisor
        self._stored = stored
        self._metrics = metrics or generation_metrics()
        self.tensor_shapes: Mapping[str, tuple[int, ...]] = served.tensor_shapes
        self._metrics.step_age.set_function(lambda: self.seconds_since_step)
        self._metrics.weights_version.set(0)

    @property
    def info(self) -> EngineInfo:
        """What runs, within the server's limits."""
        served, limits = self._served, self._supervisor.limits
        kinds = frozenset[PushKind]() if self._stored is None else self._stored.push_kinds
        return EngineInfo(
            model=served.source,
            engine="tgi",
            vocabulary_size=served.vocabulary_size,
            tokenizer_fingerprint=served.fingerprint,
            context_length=min(served.context_length, limits.max_total_tokens),
            end_token_ids=served.end_ids,
            capabilities=EngineCapabilities(
                push_kinds=kinds,
                token_ids=False,
                logprobs=True,
                full_logprobs=False,
                # A seed fixes the random numbers; the server's batches, and so rounding, vary.
                seeds=False,
                delta_dtypes=StoredWeights.delta_dtypes,
            ),
            max_prompt_tokens=limits.max_input_tokens,
        )

    @property
    def loaded(self) -> LoadedWeights:
        """What the server says that it serves."""
        return self._supervisor.loaded

    @property
    def seconds_since_step(self) -> float:
        """Age of the last answer, or of the last time that the server was healthy, under work."""
        return self._supervisor.seconds_since_step

    def check_adapter(self, specs: Sequence[TensorSpec], field: str) -> None:
        """Checks that an adapter fits; see `ServedModel.check_adapter`."""
        self._served.check_adapter(specs, field)

    def encode(self, prompt: Prompt, field: str) -> tuple[int, ...]:
        """The ids that the server will make of a prompt.

        Raises:
            FieldError: It is given as token ids, the server would make others of it, or it is too
                long for it.
        """
        ids = self._served.codec.encode(prompt, field)
        self._served.text_of(prompt, ids, field)
        most = self._supervisor.limits.max_input_tokens
        if len(ids) > most:
            raise FieldError(
                field,
                f"{len(ids)} tokens",
                f"at most {most}, what this text-generation-inference takes (--max-input-tokens)",
            )
        return ids

    def generate(self, request: EngineRequest) -> AsyncGenerator[Completion]:
        """Yields completions as they end; closing the generator drops the server's requests."""
        return side_by_side(request, partial(self._complete, request=request), self._metrics)

    async def _complete(self, sample: Sample, request: EngineRequest) -> Completion:
        prompt, pause = sample.prompt, _FIRST_PAUSE_SECONDS
        text = self._served.text_of(prompt.prompt, prompt.token_ids, sample.name)
        for _ in range(_ATTEMPTS):
            async with self._supervisor.route() as route:
                request.admit(route.server.loaded)
                check_sampling(request.sampling, route.server.limits)
                try:
                    sampled = await route.client.sample(
                        sample, text, request.sampling, request.deadline
                    )
                except ServerGoneError as error:
                    gone = error
                else:
                    route.stepped()
                    version = route.server.loaded.version
                    return completion_of(sample, sampled, self._served, version)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        raise ServiceError(
            grpc.StatusCode.UNAVAILABLE,
            f"text-generation-inference at {route.server.url} cannot be reached: {gone}",
        ) from gone

    @property
    def base(self) -> tuple[TensorSpec, ...]:
        """The model's own tensors as the server has them; empty for unknown or none."""
        return () if self._stored is None else self._stored.base

    def own_tensors(self) -> Mapping[str, Tensor]:
        """The model's own tensors as they are served."""
        return self._pushable.own_tensors()

    async def apply(self, tensors: Sequence[PushedTensor], loaded: LoadedWeights) -> float:
        """Starts a server on the new weights and returns the seconds without one."""
        specs = [pushed.spec for pushed in tensors]
        return await self._swap(partial(self._pushable.write, tensors, loaded), specs, loaded)

    async def change(
        self, changes: Sequence[ChangedTensor], specs: Sequence[TensorSpec], loaded: LoadedWeights
    ) -> float:
        """Starts a server on the changed weights and returns the seconds without one."""
        return await self._swap(
            lambda: self._pushable.write_changes(changes, loaded), specs, loaded
        )

    @property
    def _pushable(self) -> StoredWeights:
        assert self._stored is not None  # It offers no kind of push otherwise.
        return self._stored

    async def _swap(
        self, write: Callable[[], Path], specs: Sequence[TensorSpec], loaded: LoadedWeights
    ) -> float:
        async def swap() -> float:
            folder = await in_own_thread(write)
            try:
                pause = await self._supervisor.replace(folder, loaded)
            except StartError as error:
                raise ServiceError(
                    grpc.StatusCode.UNAVAILABLE,
                    f"weights version {loaded.version} is not served, the old ones are: {error}",
                ) from error
            self._pushable.serves(folder, specs)
            self._metrics.weights_version.set(loaded.version)
            return pause

        return await asyncio.shield(asyncio.ensure_future(swap()))

    def start(self) -> None:
        """Begins to watch the server; to be called in the event loop."""
        self._supervisor.start()

    async def stop(self) -> None:
        """Drops all requests, and ends the server where it is ours."""
        await self._supervisor.stop()
        if self._stored is not None:
            self._stored.folders.close()


def load_tgi(options: TgiOptions) -> TgiEngine:
    """The engine with its server up. Blocks.

    Raises:
        StartError: Options that do not go together, or a server that does not come up or fit.
    """
    if (options.command is None) == (options.address is None):
        raise StartError(
            "--engine tgi: wanted either --engine-command, to start text-generation-inference and "
            "again at every push, or --engine-address of one that runs, whose weights stay"
        )
    served = ServedModel(options.model, options.tokenizer)
    if options.address is not None:
        # Somebody else's weights; the digest tells them from any that are pushed.
        said = f"text-generation-inference at {options.address} with {options.model}"
        fixed = LoadedWeights(digest=hashlib.sha256(said.encode()).digest())
        return TgiEngine(served, Supervisor(None, found(options.address, fixed, served)), None)
    work = Path(options.work_folder) if options.work_folder else None
    stored = StoredWeights(ModelFolders(work, served))

    def launch(folder: Path, loaded: LoadedWeights, given_up: Callable[[], bool]) -> RunningServer:
        assert options.command is not None
        return launched(
            options.command,
            folder,
            loaded,
            served,
            timeout=options.start_timeout,
            given_up=given_up,
        )

    loaded = stored.start(options.model, options.weights_dtype, weights=options.weights)
    assert stored.folder is not None
    server = launch(stored.folder, loaded, lambda: False)
    return TgiEngine(served, Supervisor(launch, server, options.restart), stored)
