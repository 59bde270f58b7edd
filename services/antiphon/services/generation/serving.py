"""A generation service as a process: its options, its engine, its server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import torch

from antiphon.clients.types import FieldError, TensorDtype
from antiphon.services.common.errors import StartError
from antiphon.services.common.garbage import short_collections
from antiphon.services.common.memory import reuse_freed_memory
from antiphon.services.common.models import load_model, load_tokenizer
from antiphon.services.common.server import (
    Server,
    ServerSettings,
    StopSignals,
    run_until_stopped,
)
from antiphon.services.common.weights_store import WeightsStore
from antiphon.services.generation.choices import EngineName, OnSwap, Restart
from antiphon.services.generation.engine import Engine
from antiphon.services.generation.liveness import STEP_LIMIT_SECONDS, live_health
from antiphon.services.generation.service import GenerationService
from antiphon.services.generation.servicer import SERVICE_NAME, GenerationServicer, add_to_server
from antiphon.services.generation.transformers_engine import TransformersEngine

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """What a generation service runs.

    Attributes:
        model: Hub name, folder or `.gguf` file.
        tokenizer: Where the tokenizer is, if not with the model.
        weights: False loads config and tokenizer only and waits for a push.
        agent: The agent served; None takes that of the first call.
        device: A torch device, or "auto" for the first GPU where there is one.
        dtype: Number format to compute in; None for float32 on CPU and bfloat16 on GPU.
        weights_dtype: Number format that the starting weights are rounded to.
        max_batch_size: Most rows decoded together.
        on_swap: What becomes of completions under way when weights are swapped.
        run_lease_seconds: How long a silent run keeps the service.
        step_limit_seconds: How long a step of the engine may take until health says NOT_SERVING;
            None for no limit.
        engine: What samples. The settings below are for engines that are other programs.
        engine_command: How to start the program, with ``{model}`` and ``{port}``.
        engine_address: Where the program runs already, started by somebody else.
        engine_start_timeout: Seconds that the program may take to start.
        engine_settings: The program's own settings, by name.
        engine_token: Sent to the program with every request; None for none.
        restart: Whether a program that restarts at a push does so beside the old one, or after it.
        sleep_after: Seconds without work after which the program gives up GPU memory; None: never.
        work_folder: Where pushed weights are written for the program; None for a temporary folder.
        weights_store: URL of the store that the learner writes pushes to; None: they are sent.
    """

    model: str
    tokenizer: str | None = None
    weights: bool = True
    agent: int | None = None
    device: str = "auto"
    dtype: TensorDtype | None = None
    weights_dtype: TensorDtype = TensorDtype.BFLOAT16
    max_batch_size: int = 64
    on_swap: OnSwap = "finish"
    run_lease_seconds: float = 60.0
    step_limit_seconds: float | None = STEP_LIMIT_SECONDS
    engine: EngineName = "transformers"
    engine_command: str | None = None
    engine_address: str | None = None
    engine_start_timeout: float = 600.0
    engine_settings: Mapping[str, Any] = field(default_factory=dict)
    engine_token: str | None = None
    restart: Restart = "rolling"
    sleep_after: float | None = None
    work_folder: str | None = None
    weights_store: str | None = None


def load_engine(options: GenerationOptions) -> Engine:
    """Loads what samples. Blocks.

    Raises:
        StartError: The model cannot be loaded, the device is not there, or the engine's program or
            package is not, or does not start.
    """
    loaders: dict[EngineName, Callable[[GenerationOptions], Engine]] = {
        "transformers": _load_transformers,
        "tgi": _load_tgi,
        "vllm": _load_vllm,
        "openai": _load_openai,
    }
    try:
        return loaders[options.engine](options)
    except ModuleNotFoundError as error:
        raise StartError(
            f"--engine {options.engine} needs {error.name}; install it: "
            f"pip install 'antiphon[generation,{options.engine}]'"
        ) from error


def _load_tgi(options: GenerationOptions) -> Engine:
    from antiphon.services.generation.engines.tgi.engine import TgiOptions, load_tgi

    asked = TgiOptions(
        model=options.model,
        tokenizer=options.tokenizer,
        command=options.engine_command,
        address=options.engine_address,
        weights=options.weights,
        weights_dtype=options.weights_dtype,
        restart=options.restart,
        start_timeout=options.engine_start_timeout,
        work_folder=options.work_folder,
    )
    try:
        return load_tgi(asked)
    except (OSError, ValueError, KeyError) as error:
        raise _not_loaded(options, "for tgi", error) from error


def _load_vllm(options: GenerationOptions) -> Engine:
    from antiphon.services.generation.engines.vllm_engine import VllmOptions, load_vllm

    asked = VllmOptions(
        model=options.model,
        tokenizer=options.tokenizer,
        weights=options.weights,
        weights_dtype=options.weights_dtype,
        dtype=options.dtype,
        settings=options.engine_settings,
        work_folder=options.work_folder,
        sleep_after=options.sleep_after,
    )
    try:
        return load_vllm(asked)
    except (OSError, ValueError, KeyError) as error:
        raise _not_loaded(options, "for vllm", error) from error


def _load_openai(options: GenerationOptions) -> Engine:
    from antiphon.services.generation.engines.openai_engine import OpenAIEngine
    from antiphon.services.generation.engines.served_model import ServedModel

    if options.engine_address is None:
        raise StartError(
            "--engine openai: wanted --engine-address, the server's URL, for example "
            "http://127.0.0.1:8000/v1"
        )
    try:
        served = ServedModel(options.model, options.tokenizer)
    except (OSError, ValueError, KeyError) as error:
        raise _not_loaded(options, "for its tokenizer", error) from error
    extra = dict(options.engine_settings)
    model = str(extra.pop("model", options.model))
    return OpenAIEngine(
        served, options.engine_address, model=model, extra=extra, token=options.engine_token
    )


def _load_transformers(options: GenerationOptions) -> TransformersEngine:
    name = options.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        dtype = getattr(torch, options.dtype) if options.dtype else _own_dtype(device)
        model = load_model(options.model, dtype=dtype, weights=options.weights).to(device)
        tokenizer = load_tokenizer(options.tokenizer or options.model)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise _not_loaded(options, f"on {name}", error) from error
    return TransformersEngine(
        model,
        tokenizer,
        source=options.model,
        weights=options.weights,
        weights_dtype=options.weights_dtype,
        max_batch_size=options.max_batch_size,
        on_swap=options.on_swap,
    )


def _not_loaded(options: GenerationOptions, where: str, error: Exception) -> StartError:
    problem = f"cannot load --model {options.model} {where}: {error}"
    if isinstance(error, FieldError):  # it says what is wanted
        return StartError(problem)
    file = "" if options.engine != "transformers" else "a .gguf file, "
    return StartError(
        f"{problem}. Wanted: a folder with config.json and a tokenizer, {file}or a name that the "
        "model hub knows"
    )


def _own_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def generation_server(
    settings: ServerSettings,
    engine: Engine,
    *,
    agent: int | None = None,
    run_lease_seconds: float = 60.0,
    store: WeightsStore | None = None,
) -> Server:
    """A server of `GenerationService`, to be started on the event loop that runs now.

    Args:
        settings: How it listens.
        engine: Started and stopped by the caller.
        agent: The agent served; None takes that of the first call.
        run_lease_seconds: How long a silent run keeps the service.
        store: Shared with the learner, to read pushes from; None for none.
    """

    def register(grpc_server: grpc.aio.Server) -> None:
        add_to_server(servicer, grpc_server)

    server = Server(settings, name="generation", services=[SERVICE_NAME], register=register)
    service = GenerationService(
        engine,
        instance_id=server.instance_id,
        boot_id=server.boot_id,
        agent=agent,
        run_lease_seconds=run_lease_seconds,
        store=store,
    )
    servicer = GenerationServicer(service)
    return server


async def serve_generation(options: GenerationOptions, settings: ServerSettings) -> int:
    """Loads the engine, serves until told to stop and returns the exit code.

    A request to stop ends the loading too.

    Raises:
        StartError: The model cannot be loaded or the server cannot start.
    """
    settings.check()
    store = _store(options)
    reuse_freed_memory()
    with StopSignals(exit_with_parent=settings.exit_with_parent) as stop:
        stopping = asyncio.ensure_future(stop.wait())
        loading = _in_daemon_thread(options)
        waits: set[asyncio.Future[Any]] = {stopping, loading}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            logger.info("generation stops before %s was loaded", options.model)
            return stop.exit_code
        stopping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stopping
        engine = loading.result()
        server = generation_server(
            settings,
            engine,
            agent=options.agent,
            run_lease_seconds=options.run_lease_seconds,
            store=store,
        )
        engine.start()
        try:
            limit = options.step_limit_seconds
            with short_collections():
                async with live_health(engine, server.set_serving, limit_seconds=limit):
                    return await run_until_stopped(server, stop)
        finally:
            await engine.stop()


def _store(options: GenerationOptions) -> WeightsStore | None:
    if options.weights_store is None:
        return None
    try:
        return WeightsStore(options.weights_store)
    except FieldError as error:
        raise StartError(f"--weights-store: got {error.got}, wanted {error.wanted}") from error


def _in_daemon_thread(options: GenerationOptions) -> asyncio.Future[Engine]:
    """Loads in a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Engine] = loop.create_future()

    def settle(outcome: Engine | BaseException) -> None:
        if future.done():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def load() -> None:
        outcome: Engine | BaseException
        try:
            outcome = load_engine(options)
        except BaseException as error:  # noqa: BLE001 - whoever awaits the future gets it
            outcome = error
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=load, name="load-model", daemon=True).start()
    return future
