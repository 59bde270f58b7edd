"""antiphon's side: the engine that a generation service runs, without the wire."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import torch
from benchmarks.generation_parts.work import SAMPLES, TEMPERATURE, TOP_K, TOP_P, Lengths, Work

from antiphon.clients.types import ChatMessage, SamplingParameters
from antiphon.services.common.models import load_model, load_tokenizer
from antiphon.services.generation.engine import EncodedPrompt, EngineRequest
from antiphon.services.generation.transformers_engine import TransformersEngine


class Ours:
    """The transformers engine with its own defaults.

    Args:
        model: A folder.
        lengths: `fixed` takes the end tokens from model and tokenizer, so that none ends.
    """

    def __init__(self, model: str, lengths: Lengths) -> None:
        loaded, tokenizer = load_model(model, dtype=torch.float32), load_tokenizer(model)
        if lengths == "fixed":
            for holder in (loaded.generation_config, loaded.config, tokenizer):
                holder.eos_token_id = None
        self._engine = TransformersEngine(loaded, tokenizer, source=model)

    def run(self, work: Work) -> dict[str, Any]:
        """Does the work; gives seconds, and of each completion what it needs to be checked."""
        return asyncio.run(self._run(work))

    async def _run(self, work: Work) -> dict[str, Any]:
        prompts = tuple(
            EncodedPrompt(
                self._engine.encode((ChatMessage("user", text),), "prompt"),
                tuple(SAMPLES * index + sample for sample in range(SAMPLES)),
            )
            for index, text in enumerate(work.prompts)
        )
        sampling = SamplingParameters(TEMPERATURE, TOP_K, TOP_P, work.new_tokens)
        request = EngineRequest(prompts, sampling, False, lambda _: None)
        began = time.perf_counter()
        completions = [completion async for completion in self._engine.generate(request)]
        seconds = time.perf_counter() - began
        completions.sort(key=lambda c: (c.prompt_index, c.sample_index))
        return {
            "seconds": seconds,
            "lengths": [len(c.token_ids) for c in completions],
            "completions": [
                [c.prompt_token_ids, c.token_ids, c.kept_sizes, c.logprobs] for c in completions
            ],
        }

    def start(self) -> None:
        """Starts the engine's thread."""
        self._engine.start()
