"""The models of the job; they hardly ever end an answer, so that both sides sample as much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from examples.smollm2 import prepare
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig

SPARE_TOKENS = ("<file_sep>", "<gh_stars>")
"""Tokens that text does not hold, taken for the end and for padding."""


def smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct."""
    source = prepare()
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    return _save(model, AutoTokenizer.from_pretrained(source), folder)


def small(folder: Path) -> Path:
    """A random Llama of seven million parameters, four layers 128 wide, with SmolLM2's tokens."""
    tokenizer = AutoTokenizer.from_pretrained(prepare())
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    return _save(model, tokenizer, folder)


def _save(model: Any, tokenizer: Any, folder: Path) -> Path:
    """Save both where they are missing, with weights that are exact in bfloat16."""
    end, pad = tokenizer.convert_tokens_to_ids(list(SPARE_TOKENS))
    tokenizer.eos_token, tokenizer.pad_token = SPARE_TOKENS
    model.config.eos_token_id, model.config.pad_token_id = end, pad
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad)
    model.to(torch.bfloat16).to(torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
