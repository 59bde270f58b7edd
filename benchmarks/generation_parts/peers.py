"""transformers' sides: `generate` and its continuous batching, on a model as it was loaded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from benchmarks.generation_parts.work import SAMPLES, TEMPERATURE, TOP_K, TOP_P, Work
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, StoppingCriteria

from antiphon.services.common.models import load_model, load_tokenizer
from antiphon.services.common.sampling import token_logprobs


class _Lengths(StoppingCriteria):  # type: ignore[misc]
    """Ends each sequence after its own number of tokens."""

    def __init__(self, prompt: int, lengths: Sequence[int]) -> None:
        self._ends = torch.tensor([prompt + length for length in lengths])

    def __call__(self, input_ids: Tensor, _scores: Tensor, **_: Any) -> Tensor:
        return input_ids.shape[1] >= self._ends


class Peers:
    """A second copy of the model.

    Args:
        model: A folder.
    """

    def __init__(self, model: str) -> None:
        self._model = load_model(model, dtype=torch.float32)
        self._tokenizer = load_tokenizer(model)
        # What ends a sequence is its length, which the measurement says.
        self._model.generation_config.eos_token_id = None
        self._model.config.eos_token_id = None

    def generate(self, work: Work, lengths: Sequence[int]) -> dict[str, Any]:
        """`generate`, all sequences in one batch, which ended ones leave when the last ends."""
        prompts = self._prompts(work)
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        began = time.perf_counter()
        output = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=self._config(work, num_return_sequences=SAMPLES),
            stopping_criteria=[_Lengths(width, lengths)],
        )
        seconds = time.perf_counter() - began
        if output.shape != (work.size, width + max(lengths)):
            raise RuntimeError(f"generate gave {tuple(output.shape)}, wanted {max(lengths)} steps")
        return {"seconds": seconds, "lengths": list(lengths)}

    def continuous(self, work: Work, lengths: Sequence[int]) -> dict[str, Any]:
        """Continuous batching; sequences leave as they end."""
        prompts = [prompt for prompt in self._prompts(work) for _ in range(SAMPLES)]
        pages = sum(-(-(len(p) + n) // 32) for p, n in zip(prompts, lengths, strict=True))
        settings = ContinuousBatchingConfig(
            page_size=32,
            num_blocks=pages + 8,
            max_batch_tokens=max(512, 2 * work.size),
        )
        with self._model.continuous_batching_context_manager(
            generation_config=self._config(work), continuous_batching_config=settings
        ) as manager:
            began = time.perf_counter()
            places = {}
            for place, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
                name = manager.add_request(prompt, max_new_tokens=length, eos_token_id=-1)
                places[name] = place
            got = [0] * work.size
            while places:
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    got[places.pop(result.request_id)] = len(result.generated_tokens)
                elif result is None and not manager.is_running():
                    raise RuntimeError("continuous batching ended before its requests")
            seconds = time.perf_counter() - began
        return {"seconds": seconds, "lengths": got}

    @torch.no_grad()
    def largest_error(self, work: Work, completions: Sequence[Sequence[Sequence[float]]]) -> float:
        """Largest difference of reported log-probabilities from those of a fresh forward.

        Raises:
            ValueError: A completion is of another prompt.
        """
        largest, prompts = 0.0, self._prompts(work)
        for prompt, ids, kept, logprobs in completions:
            if prompt not in prompts:
                raise ValueError(f"got a completion of {prompt}, wanted one of {prompts}")
            row = torch.tensor([[*prompt, *ids]], dtype=torch.int64)
            logits = self._model(row, use_cache=False).logits[0, len(prompt) - 1 : -1]
            said = token_logprobs(
                logits,
                torch.tensor(ids, dtype=torch.int64),
                torch.tensor(kept, dtype=torch.int64),
                TEMPERATURE,
            )
            difference = (said.logprobs - torch.tensor(logprobs)).abs().max()
            largest = max(largest, float(difference))
        return largest

    def _prompts(self, work: Work) -> list[list[int]]:
        return [
            list(
                self._tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}],
                    add_generation_prompt=True,
                    tokenize=True,
                    return_dict=False,
                )
            )
            for text in work.prompts
        ]

    def _config(self, work: Work, **more: Any) -> GenerationConfig:
        return GenerationConfig(
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=TOP_K,
            top_p=TOP_P,
            max_new_tokens=work.new_tokens,
            pad_token_id=0,
            **more,
        )
