"""Sampling as text-generation-inference does it: what a request asks for, and its answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.tgi.llama import Array, Llama, log_softmax
from tokenizers import Tokenizer

Json = dict[str, Any]


class GoneError(Exception):
    """Nobody waits for the answer any more."""


class TextModel:
    """A model with its tokenizer.

    Args:
        folder: Of the model.
        adapter: Of a LoRA adapter.
    """

    def __init__(self, folder: Path, adapter: Path | None = None) -> None:
        self.llama = Llama(folder, adapter)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
        self._special = {token["id"] for token in added if token["special"]}
        ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
        self._ends = set(ends if isinstance(ends, list) else [ends])

    def encode(self, text: str) -> list[int]:
        """A text's ids, with the tokenizer's special tokens, as always."""
        return list(self._tokenizer.encode(text, add_special_tokens=True).ids)

    def described(self, token: int) -> Json:
        """Id and text of a token."""
        return {"id": token, "text": self._tokenizer.decode([token], skip_special_tokens=False)}

    def generate(self, prompt: list[int], asked: Json, step: Callable[[], None]) -> Json:
        """The answer to a request that has been found valid; calls `step` before each token."""
        adapted = asked.get("adapter_id") is not None
        generator = np.random.default_rng(asked.get("seed") or 0)
        ids, tokens, likeliest = list(prompt), [], []
        reason = "length"
        while len(tokens) < asked.get("max_new_tokens", 100) and reason == "length":
            step()
            logits = self.llama.logits(ids, adapted=adapted)
            logprobs = log_softmax(_warped(logits, asked))
            if asked.get("do_sample"):
                chances = np.exp(logprobs.astype(np.float64))
                token = int(generator.choice(len(chances), p=chances / chances.sum()))
            else:
                token = int(logprobs.argmax())
            ids.append(token)
            tokens.append(self._token(token, logprobs))
            likeliest.append(self._likeliest(logprobs, asked.get("top_n_tokens") or 0))
            reason = "eos_token" if token in self._ends else "length"
        details: Json = {
            "finish_reason": reason,
            "generated_tokens": len(tokens),
            "seed": asked.get("seed"),
            "prefill": [],
            "tokens": tokens,
        }
        if asked.get("decoder_input_details"):
            details["prefill"] = [{**self.described(token), "logprob": None} for token in prompt]
        if asked.get("top_n_tokens"):
            details["top_tokens"] = likeliest
        text = self._tokenizer.decode([t["id"] for t in tokens], skip_special_tokens=True)
        return {"generated_text": text, **({"details": details} if asked.get("details") else {})}

    def _token(self, token: int, logprobs: Array) -> Json:
        return {
            **self.described(token),
            "logprob": float(logprobs[token]),
            "special": token in self._special,
        }

    def _likeliest(self, logprobs: Array, count: int) -> list[Json]:
        """As many of the likeliest tokens, and those as likely as the last of them.

        What a filter took away is not among them.
        """
        if not count:
            return []
        among = (logprobs >= _least(logprobs, count)) & (logprobs > -np.inf)
        found = among.nonzero()[0].tolist()
        return [self._token(i, logprobs) for i in sorted(found, key=lambda i: -logprobs[i])]


def _least(values: Array, count: int) -> np.float32:
    """The smallest of the `count` largest values."""
    return np.sort(values)[-min(count, len(values))]


def _warped(logits: Array, asked: Json) -> Array:
    """Temperature, then top-k, then top-p."""
    if not asked.get("do_sample"):
        return logits
    scores = logits / np.float32(asked.get("temperature") or 1.0)
    if top_k := asked.get("top_k"):
        scores = np.where(scores < _least(scores, top_k), -np.inf, scores)
    if top_p := asked.get("top_p"):
        order = np.argsort(scores, kind="stable")
        below = np.exp(log_softmax(scores[order])).cumsum() <= 1 - top_p
        below[-1] = False
        scores[order[below]] = -np.inf
    return scores.astype(np.float32)
