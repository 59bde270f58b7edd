"""`antiphon serve generation`."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.clients.types import TensorDtype
from antiphon.services.common.errors import StartError
from antiphon.services.common.options import server_command
from antiphon.services.common.server import ServerSettings
from antiphon.services.common.token_file import TokenFile
from antiphon.services.generation.choices import EngineName, OnSwap, Restart

_PANEL = "Engine"

# torch is imported by `serve`, once the environment says how its threads behave.


@server_command
def serve(
    *,
    model: Annotated[
        str,
        typer.Option(metavar="NAME|DIR|FILE.gguf", help="Hub name, folder or GGUF file."),
    ],
    tokenizer: Annotated[
        str | None, typer.Option(help="Where the tokenizer is, if not with the model.")
    ] = None,
    no_weights: Annotated[
        bool,
        typer.Option("--no-weights", help="Load config and tokenizer only; a push brings weights."),
    ] = False,
    agent: Annotated[
        int | None,
        typer.Option(min=0, help="Agent that is served; by default that of the first call."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:1, …; auto is a GPU where there is one.")
    ] = "auto",
    dtype: Annotated[
        TensorDtype | None,
        typer.Option(help="Compute in it; by default float32 on CPU, bfloat16 on GPU."),
    ] = None,
    weights_dtype: Annotated[
        TensorDtype,
        typer.Option(
            help="Round the starting weights to it, as a push in that format would, so that their "
            "digest tells a learner that it starts from the same."
        ),
    ] = TensorDtype.BFLOAT16,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; by default one per core.")
    ] = None,
    max_batch_size: Annotated[
        int,
        typer.Option(min=1, help="Most completions decoded together; others join as those end."),
    ] = 64,
    on_swap: Annotated[
        OnSwap,
        typer.Option(
            help="When new weights come, let completions under way finish first, or continue them "
            "under the new weights."
        ),
    ] = "finish",
    run_lease: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds without a call after which another run may take the service. A run calls "
            "every 15 seconds at least: below 30, one that is busy may lose it.",
        ),
    ] = 60.0,
    weights_store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Read pushes from the store that the learner writes them to "
            "(magrpo.weights_store), for example file:///mnt/weights or s3://bucket/weights; by "
            "default they are sent. Nothing else is read there.",
        ),
    ] = None,
    step_limit: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds that a step of the engine (a token, a prefill, a swap; of another "
            "program an answer) may take until health says NOT_SERVING, so that the process is "
            "replaced; 0 for no limit.",
        ),
    ] = 300.0,
    engine: Annotated[
        EngineName,
        typer.Option(help="What samples: this process, or a program.", rich_help_panel=_PANEL),
    ] = "transformers",
    engine_command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="tgi: starts the program, with {model} and {port}; again at every push.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    engine_address: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="tgi, openai: a server that runs already; it keeps its weights.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    engine_start_timeout: Annotated[
        float,
        typer.Option(min=0, help="Seconds until the program must serve.", rich_help_panel=_PANEL),
    ] = 600.0,
    engine_token_file: Annotated[
        Path | None,
        typer.Option(
            help="openai: a file with the token that the server wants.", rich_help_panel=_PANEL
        ),
    ] = None,
    engine_set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="vllm: an engine argument, as tensor_parallel_size=2. openai: a field of every "
            "request; model is the server's name of its model. Repeatable.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    restart: Annotated[
        Restart,
        typer.Option(
            help="tgi: at a push, start the new program beside the old one (needs memory for both) "
            "or after its end.",
            rich_help_panel=_PANEL,
        ),
    ] = "rolling",
    sleep_after: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="vllm: give up GPU memory after so many seconds without work, until some comes.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    work_folder: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where pushed weights are written for the program; best in memory.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    server: ServerSettings,
) -> int:
    """Serve one agent's model: sample completions, take weights.

    A small model from a folder, on a port of your choice:

        antiphon serve generation --model ./SmolLM2-135M-Instruct --port 50051

    Two agents on one machine, half of its four cores each:

        antiphon serve generation --model NAME --agent 0 --port 50051 --threads 2

        antiphon serve generation --model NAME --agent 1 --port 50052 --threads 2

    Start from architecture and tokenizer only, and wait for a learner's weights:

        antiphon serve generation --model ./folder --no-weights --port 50051

    In front of text-generation-inference, started anew on every push:

        antiphon serve generation --model ./folder --engine tgi --engine-command
        "text-generation-launcher --model-id {model} --port {port} --max-top-n-tokens 64"

    With vLLM, where it is installed, on two GPUs:

        antiphon serve generation --model NAME --engine vllm --engine-set tensor_parallel_size=2

    A frozen agent, answered by any server of the OpenAI chat API:

        antiphon serve generation --model ./folder --engine openai --engine-address
        http://127.0.0.1:8000/v1 --engine-set model=NAME

    For other machines, with TLS and a token:

        antiphon serve generation --model NAME --host 0.0.0.0 --port 50051 --tls-cert tls.crt
        --tls-key tls.key --token-file token
    """
    # Threads that spin while they wait take the cores from every other process.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        import torch

        from antiphon.services.generation.serving import GenerationOptions, serve_generation
    except ModuleNotFoundError as error:
        raise StartError(
            f"the generation service needs {error.name}; install it: "
            "pip install 'antiphon[generation]'"
        ) from error
    if threads is not None:
        torch.set_num_threads(threads)
    options = GenerationOptions(
        model=model,
        tokenizer=tokenizer,
        weights=not no_weights,
        agent=agent,
        device=device,
        dtype=dtype,
        weights_dtype=weights_dtype,
        max_batch_size=max_batch_size,
        on_swap=on_swap,
        run_lease_seconds=run_lease,
        step_limit_seconds=step_limit or None,
        engine=engine,
        engine_command=engine_command,
        engine_address=engine_address,
        engine_start_timeout=engine_start_timeout,
        engine_token=TokenFile(engine_token_file).token() if engine_token_file else None,
        engine_settings=dict(map(_setting, engine_set or ())),
        restart=restart,
        sleep_after=sleep_after,
        work_folder=work_folder,
        weights_store=weights_store,
    )
    return asyncio.run(serve_generation(options, server))


def _setting(given: str) -> tuple[str, Any]:
    """A name and its value; what is no JSON is text."""
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"--engine-set {given!r}; wanted NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
