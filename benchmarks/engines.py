"""Engines side by side: tokens per second, memory, and the pause of a push.

    make bench-engines

SmolLM2-135M in float32 on a CPU: the transformers engine, vLLM as the vllm engine runs it, and a
vLLM server driven over its control endpoints (pause, reload_weights, reset_prefix_cache, resume),
which is what the vllm engine would be as a supervised program. All sample the same prompts in turn,
and take the same weights. Before a time is told, each engine's greedy tokens are held against those
of the transformers engine, before and after the push.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from benchmarks import results
from torch import Tensor

from antiphon.clients.types import LoadedWeights, SamplingParameters, TensorDtype
from antiphon.services.common.models import load_model
from antiphon.services.common.tensors import tensor_specs, to_bytes, wire_tensors
from antiphon.services.generation.engine import EncodedPrompt, Engine, EngineRequest, PushedTensor
from antiphon.services.generation.engines.model_folders import ModelFolders
from antiphon.services.generation.engines.program import Program, free_port
from antiphon.services.generation.engines.served_model import ServedModel
from antiphon.services.generation.serving import GenerationOptions, load_engine

MODEL = Path.home() / ".cache/antiphon/SmolLM2-135M-Instruct"
PROMPTS, SAMPLES, NEW_TOKENS, SAME, ROUNDS = 8, 4, 48, 6, 2
SETTINGS = {"enforce_eager": True, "max_model_len": 512}
ENVIRON = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "HF_HUB_OFFLINE": "1",
}
BF16 = TensorDtype.BFLOAT16


def main() -> None:
    """Measure and write the rows."""
    os.environ.update(ENVIRON)
    own = wire_tensors(load_model(MODEL, dtype=torch.bfloat16))
    moved = {name: tensor * 1.01 for name, tensor in own.items()}
    figures = {
        "transformers": asyncio.run(_engine("transformers", own, moved)),
        "vllm": asyncio.run(_engine("vllm", own, moved)),
        "vllm_server": _server(own, moved),
    }
    wanted = figures["transformers"]["tokens"]
    for name, figure in figures.items():
        assert figure["tokens"] == wanted, f"{name} samples other greedy tokens"
    rate = {name: statistics.median(figure["rates"]) for name, figure in figures.items()}
    pause = {name: statistics.median(figure["pauses"]) for name, figure in figures.items()}
    results.write(
        results.Row(
            name="engine_throughput",
            value=rate["vllm"] / rate["transformers"],
            unit="times",
            wanted="told, whatever it is",
            holds=True,
            baseline=f"the transformers engine, {rate['transformers']:.0f} tokens/s",
            details=figures,
        )
    )
    results.write(
        results.Row(
            name="engine_push_pause",
            value=pause["vllm_server"] / pause["vllm"],
            unit="times",
            wanted="0.8 to 1.25: what pauses is the reload, not the way that it is asked for",
            holds=0.8 <= pause["vllm_server"] / pause["vllm"] <= 1.25,
            baseline=f"vLLM in the service's process, {pause['vllm']:.2f} s",
            details={"seconds": pause},
        )
    )


async def _engine(name: str, own: dict[str, Tensor], moved: dict[str, Tensor]) -> dict[str, Any]:
    before = _memory()
    options = GenerationOptions(
        model=str(MODEL), engine=name, engine_settings=SETTINGS if name == "vllm" else {}
    )
    engine = await asyncio.to_thread(load_engine, options)
    engine.start()
    try:
        tokens = [await _greedy(engine)]
        rates = [await _rate(engine, round_) for round_ in range(ROUNDS)]
        memory = _memory() - before
        pauses = []
        for version, weights in enumerate((moved, own) * ROUNDS, 1):
            pauses.append(
                await engine.apply(_pushed(weights), LoadedWeights("run", 1, version, b"x"))
            )
            tokens += [await _greedy(engine)] if version == 1 else []
    finally:
        await engine.stop()
    return {"tokens": tokens, "rates": rates, "pauses": pauses, "gigabytes": memory / 1e9}


def _pushed(weights: dict[str, Tensor]) -> list[PushedTensor]:
    return [
        PushedTensor(spec, memoryview(bytearray(to_bytes(weights[spec.name], BF16))))
        for spec in tensor_specs(weights, BF16)
    ]


async def _greedy(engine: Engine) -> list[list[int]]:
    return await _sampled(engine, SamplingParameters(0.0, None, None, SAME), samples=1)


async def _rate(engine: Engine, round_: int) -> float:
    sampling = SamplingParameters(0.6, 50, 0.6, NEW_TOKENS)
    began = time.perf_counter()
    completions = await _sampled(engine, sampling, samples=SAMPLES, seed=1000 * round_)
    return sum(map(len, completions)) / (time.perf_counter() - began)


async def _sampled(
    engine: Engine, sampling: SamplingParameters, *, samples: int, seed: int = 0
) -> list[list[int]]:
    prompts = []
    for index in range(PROMPTS):
        text = _text(index)
        seeds = tuple(seed + 10 * index + sample for sample in range(samples))
        prompts.append(EncodedPrompt(engine.encode(text, "prompt"), seeds, text))
    asked = EngineRequest(tuple(prompts), sampling, False, lambda _: None)
    got = [completion async for completion in engine.generate(asked)]
    got.sort(key=lambda c: (c.prompt_index, c.sample_index))
    return [list(c.token_ids) for c in got]


def _text(index: int) -> str:
    places = ("clouds", "desert", "sea", "forest", "snow", "valley", "hills", "moon")
    return f"Describe a city in the {places[index]}, its people, and what they sing in the evening:"


def _server(own: dict[str, Tensor], moved: dict[str, Tensor]) -> dict[str, Any]:
    before = _memory()
    served = ServedModel(str(MODEL))
    folders = ModelFolders(Path(tempfile.mkdtemp(dir="/dev/shm")), served, untied=True)
    paths = [
        folders.write(LoadedWeights("run", 1, version, b"x"), weights, {})
        for version, weights in enumerate((own, moved))
    ]
    port = free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(paths[0])),
        *("--port", str(port), "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager"),
        *("--max-model-len", "512", "--logprobs-mode", "processed_logprobs"),
        *("--max-logprobs", "256", "--generation-config", "vllm"),
    ]
    program = Program(command, port, ENVIRON)
    try:
        program.wait_healthy(300, lambda: False)
        tokens = [_served_tokens(program.url, paths[0], served)]
        rates = [_served_rate(program.url, paths[0], served, round_) for round_ in range(ROUNDS)]
        memory = _memory() - before
        pauses = []
        for push in range(2 * ROUNDS):
            began = time.perf_counter()
            folder = paths[(push + 1) % 2]
            _post(f"{program.url}/pause?mode=wait", {})
            _post(
                f"{program.url}/collective_rpc",
                {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}},
            )
            _post(f"{program.url}/reset_prefix_cache", {})
            _post(f"{program.url}/resume", {})
            pauses.append(time.perf_counter() - began)
            tokens += [_served_tokens(program.url, paths[0], served)] if push == 0 else []
    finally:
        program.end()
    return {"tokens": tokens, "rates": rates, "pauses": pauses, "gigabytes": memory / 1e9}


def _served_tokens(url: str, model: Path, served: ServedModel) -> list[list[int]]:
    return _complete(url, model, served, temperature=0, max_tokens=SAME, seed=0)


def _served_rate(url: str, model: Path, served: ServedModel, round_: int) -> float:
    began = time.perf_counter()
    completions = _complete(
        *(url, model, served),
        n=SAMPLES,
        temperature=0.6,
        top_k=50,
        top_p=0.6,
        max_tokens=NEW_TOKENS,
        logprobs=50,
        seed=round_,
    )
    return sum(map(len, completions)) / (time.perf_counter() - began)


def _complete(url: str, model: Path, served: ServedModel, **asked: Any) -> list[list[int]]:
    ends = list(served.end_ids)
    answer = _post(
        f"{url}/v1/completions",
        {
            "model": str(model),
            "prompt": [list(served.codec.encode(_text(i), "prompt")) for i in range(PROMPTS)],
            "return_token_ids": True,
            "stop_token_ids": ends,
            **asked,
        },
    )
    choices: Sequence[dict[str, Any]] = sorted(answer["choices"], key=lambda c: c["index"])
    return [choice["token_ids"] for choice in choices]


def _post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def _memory() -> int:
    """Resident bytes of this process and all below it."""
    us = psutil.Process()
    return sum(one.memory_info().rss for one in (us, *us.children(recursive=True)))


if __name__ == "__main__":
    main()
