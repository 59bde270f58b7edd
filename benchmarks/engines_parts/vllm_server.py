"""A vLLM server beside this process, driven over its control endpoints.

That is what the vllm engine would be as a supervised program. Weights reach it as they reach vLLM
within the service: as a folder in memory.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.engines_parts.work import BF16, MODEL, TEXTS, Sampled, pushed
from torch import Tensor

from antiphon.clients.types import LoadedWeights, SamplingParameters
from antiphon.services.common.tensors import tensor_specs
from antiphon.services.generation.engine import ChangedTensor
from antiphon.services.generation.engines.model_folders import ModelFolders
from antiphon.services.generation.engines.program import Program, free_port
from antiphon.services.generation.engines.samples import cut_by_top_p
from antiphon.services.generation.engines.served_model import ServedModel
from antiphon.services.generation.engines.stored_weights import StoredWeights

START_SECONDS = 300.0
_PAUSING = ("pause?mode=wait", "collective_rpc", "reset_prefix_cache", "resume")


class VllmServer:
    """A contender of `benchmarks.engines_parts.work`.

    `steps` has the seconds that each request of a push took, by its path.
    """

    def __init__(self, program: Program, served: ServedModel, stored: StoredWeights) -> None:
        self._program = program
        self._served = served
        self._stored = stored
        self._model = str(stored.folder)
        self._versions = itertools.count(1)
        self.steps: dict[str, list[float]] = defaultdict(list)

    @classmethod
    async def start(cls, settings: dict[str, Any]) -> VllmServer:
        """A server with the model loaded."""
        return await asyncio.to_thread(cls._started, settings)

    @classmethod
    def _started(cls, settings: dict[str, Any]) -> VllmServer:
        served = ServedModel(str(MODEL))
        stored = StoredWeights(ModelFolders(None, served, untied=True, in_memory=True))
        stored.start(str(MODEL), BF16)
        port = free_port()
        options = {"port": port, "host": "127.0.0.1", "model": stored.folder, **settings}
        options |= {"logprobs_mode": "processed_logprobs", "max_logprobs": 256}
        options |= {"dtype": "float32", "generation_config": "vllm"}
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        for name, value in options.items():
            option = f"--{name.replace('_', '-')}"
            command += [option] if value is True else [option, str(value)]
        program = Program(command, port, {})
        program.wait_healthy(START_SECONDS, lambda: False)
        return cls(program, served, stored)

    async def sample(self, sampling: SamplingParameters, samples: int, seed: int) -> list[Sampled]:
        """See `Contender.sample`."""
        return await asyncio.to_thread(self._sample, sampling, samples, seed)

    def _sample(self, sampling: SamplingParameters, samples: int, seed: int) -> list[Sampled]:
        prompts = [self._served.codec.encode(text, "prompt") for text in TEXTS]
        asked = {
            "model": self._model,
            "prompt": [list(prompt) for prompt in prompts],
            "n": samples,
            "seed": seed,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
            "stop_token_ids": list(self._served.end_ids),
            "logprobs": sampling.top_k if cut_by_top_p(sampling) else 0,
            "return_token_ids": True,
        }
        choices = self._post("v1/completions", asked)["choices"]
        choices.sort(key=lambda choice: choice["index"])
        return [
            Sampled(
                prompts[choice["index"] // samples],
                tuple(choice["token_ids"]),
                tuple(choice["logprobs"]["token_logprobs"]),
            )
            for choice in choices
        ]

    async def push(self, weights: dict[str, Tensor]) -> float:
        """See `Contender.push`."""
        return await asyncio.to_thread(self._take, weights, self._stored.write, pushed(weights))

    async def change(self, changes: list[ChangedTensor], after: dict[str, Tensor]) -> float:
        """See `Contender.change`."""
        return await asyncio.to_thread(self._take, after, self._stored.write_changes, changes)

    def _take(self, after: dict[str, Tensor], write: Callable[..., Path], what: Any) -> float:
        folder = write(what, LoadedWeights("run", 1, next(self._versions), b"x"))
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        began = time.perf_counter()
        for path in _PAUSING:
            step = time.perf_counter()
            self._post(path, reload if path == "collective_rpc" else {})
            self.steps[path].append(time.perf_counter() - step)
        pause = time.perf_counter() - began
        self._stored.serves(folder, tensor_specs(after, BF16))
        return pause

    async def stop(self) -> None:
        """See `Contender.stop`."""
        await asyncio.to_thread(self._program.end)
        self._stored.folders.close()

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        url = f"{self._program.url}/{path}"
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            text = answer.read()
        return json.loads(text) if text else None
