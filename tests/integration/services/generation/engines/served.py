"""A generation service on any engine, as a caller sees it."""

from __future__ import annotations

import atexit
import itertools
import json
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tests.integration.services.generation.harness import TIMEOUT, push_of, replica, request
from tests.integration.services.generation.test_push_delta import delta
from tests.support.processes import Processes, Started
from tests.support.tgi.server import Control, TgiServer
from torch import nn

from antiphon.clients.generation import GenerationClient
from antiphon.clients.types import (
    Completion,
    ModelInfo,
    Prompt,
    PushResult,
    SamplingParameters,
    TensorDtype,
)
from antiphon.services.common.models import load_model

REPOSITORY = Path(__file__).parents[5]
RUNS = itertools.count(1)
GREEDY = SamplingParameters(0.0, None, None, 12)


@dataclass
class Served:
    """A service that holds a model folder's weights for a run.

    Attributes:
        folder: Whose weights are loaded.
        tolerance: How far log-probabilities may be from the learner's, in nats.
    """

    client: GenerationClient
    folder: Path
    run: str
    version: int
    tolerance: float

    async def generate(
        self,
        *prompts: Prompt,
        sampling: SamplingParameters = GREEDY,
        samples: int = 1,
        seeds: Callable[[int, int], int] = lambda prompt, sample: 1000 * prompt + sample,
    ) -> list[Completion]:
        """Completions in order of prompt and sample."""
        async with aclosing(
            self.stream(*prompts, sampling=sampling, samples=samples, seeds=seeds)
        ) as s:
            got = [completion async for completion in s]
        return sorted(got, key=lambda c: (c.prompt_index, c.sample_index))

    def stream(
        self,
        *prompts: Prompt,
        sampling: SamplingParameters,
        samples: int = 1,
        seeds: Callable[[int, int], int] = lambda prompt, sample: 1000 * prompt + sample,
    ) -> AsyncGenerator[Completion]:
        """Completions as they end."""
        asked = request(*prompts, samples=samples, version=self.version, run=self.run)
        entries = tuple(
            replace(entry, seeds=tuple(seeds(index, number) for number in range(samples)))
            for index, entry in enumerate(asked.prompts)
        )
        return self.client.generate(
            replace(asked, prompts=entries, sampling=sampling), timeout=2 * TIMEOUT
        )

    async def push(self, folder: Path) -> PushResult:
        """Pushes a folder's weights as the next version."""
        push = push_of(folder, self.version + 1, run=self.run)
        result = await self.client.push_weights(push.header, push.read, timeout=5 * TIMEOUT)
        self.folder, self.version = folder, result.weights_version
        return result

    async def push_delta(self, folder: Path) -> PushResult:
        """Pushes what changes from the loaded weights to a folder's as the next version."""
        base, new = (
            push_of(of, self.version + step, run=self.run)
            for step, of in enumerate((self.folder, folder))
        )
        push = delta(base, new)
        result = await self.client.push_weights(push.header, push.read, timeout=5 * TIMEOUT)
        self.folder, self.version = folder, result.weights_version
        return result

    async def info(self) -> ModelInfo:
        return await self.client.get_model_info(TIMEOUT)


def launcher(control: Control, **limits: int) -> str:
    """The command line of the stand-in for text-generation-inference."""
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in limits.items())
    return (
        f"env PYTHONPATH={REPOSITORY} {sys.executable} -m tests.support.tgi.server "
        f"--model-id {{model}} --port {{port}} --control {control.folder} {options}"
    )


@asynccontextmanager
async def on_transformers(folder: Path, _control: Control) -> AsyncGenerator[Served]:
    async with replica(folder, weights_dtype=TensorDtype.FLOAT32) as r:
        yield Served(r.client, folder, "run", 0, 1e-4)


@asynccontextmanager
async def on_tgi(folder: Path, control: Control, **limits: int) -> AsyncGenerator[Served]:
    """A service in front of a server that is started anew on a push."""
    command = launcher(control, max_top_n_tokens=64, **limits)
    options = {"engine_command": command, "weights_dtype": TensorDtype.FLOAT32}
    async with replica(folder, engine="tgi", **options) as r:
        yield Served(r.client, folder, "run", 0, 1e-4)


@asynccontextmanager
async def on_running_tgi(folder: Path, control: Control, **limits: int) -> AsyncGenerator[Served]:
    """A service in front of a server that somebody else runs."""
    limits = {"max_top_n_tokens": 64, **limits}
    with TgiServer(folder, control, **limits) as tgi:
        async with replica(folder, engine="tgi", engine_address=tgi.url) as r:
            yield Served(r.client, folder, "run", 0, 1e-4)


@asynccontextmanager
async def on_vllm(folder: Path, _control: Control) -> AsyncGenerator[Served]:
    """A run of its own on a service that is started once for each vocabulary: that takes long."""
    service = vllm_service(json.loads((folder / "config.json").read_text())["vocab_size"], folder)
    client = GenerationClient(service.address(timeout=600))
    try:
        opened = Served(client, folder, f"run-{next(RUNS)}", 0, 1e-3)
        await opened.push(folder)
        yield opened
    finally:
        await client.close()


SERVICES: dict[tuple[int | str, ...], Started] = {}


def vllm_service(vocabulary_size: int, folder: Path, *more: str) -> Started:
    """A service on vLLM that ends with this process; any run may take it over at once."""
    key = (vocabulary_size, *more)
    if key not in SERVICES:
        processes = Processes(Path(tempfile.mkdtemp()))
        atexit.register(processes.__exit__, None, None, None)
        # On a CPU vLLM takes the calls of its sleep mode, does nothing, and refuses its setting.
        lora = ("enable_lora=true", "max_lora_rank=8")
        settings = ("enforce_eager=true", "max_num_seqs=64", "enable_sleep_mode=false", *lora)
        SERVICES[key] = processes.serve(
            *("vllm", "generation", "--model", str(folder), "--engine", "vllm"),
            *("--run-lease", "0", "--weights-dtype", "float32", "--sleep-after", "2", *more),
            *(part for setting in settings for part in ("--engine-set", setting)),
            environ={
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_LOGGING_LEVEL": "WARNING",
                "VLLM_NO_USAGE_STATS": "1",
            },
        )
    return SERVICES[key]


def greedy(folder: Path, prompt: Sequence[int], ends: Sequence[int], most: int) -> tuple[int, ...]:
    """The likeliest token again and again, each from a forward of all before it."""
    model = load_model(folder, dtype=torch.float32)
    ids = list(prompt)
    for _ in range(most):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] in ends:
            break
    return tuple(ids[len(prompt) :])


def forward(of: Path | nn.Module, completion: Completion) -> torch.Tensor:
    """A model's logits [C, V] at each place of a completion."""
    model = load_model(of, dtype=torch.float32) if isinstance(of, Path) else of
    prompt = completion.prompt_token_ids
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion.token_ids])).logits[0]
    return logits[len(prompt) - 1 : -1]


def named(**values: Any) -> SamplingParameters:
    """Sampling parameters; what is not named is off."""
    filled = {"temperature": 1.0, "top_k": None, "top_p": None, "max_new_tokens": 12, **values}
    return SamplingParameters(**filled)


def gap(model: Path | nn.Module, completion: Completion) -> float:
    """Largest difference between a completion's log-probabilities and the model's."""
    logprobs = forward(model, completion).log_softmax(-1)
    own = logprobs.gather(-1, torch.tensor(completion.token_ids)[:, None]).squeeze(-1)
    return float((own - torch.tensor(completion.logprobs)).abs().max())
