"""The model of the real runs: seven million random parameters that hardly ever end an answer."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.support.models import save_model, tiny_tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT = 4096
SPREAD = 0.25
"""Of the head's weights: logits are some 4 apart, so that one of 0 is hardly ever sampled."""


def small_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Six layers, 256 wide; what its head says for the end token is 0, whatever was said before."""
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        **ends,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        torch.nn.init.normal_(model.lm_head.weight, std=SPREAD)
    with torch.no_grad():
        model.lm_head.weight[tokenizer.eos_token_id] = 0.0
    model.generation_config = GenerationConfig(**ends)
    return model.to(torch.bfloat16).to(torch.float32).eval()


def small_folder(folder: Path) -> Path:
    """The model and its tokenizer in a folder."""
    tokenizer = tiny_tokenizer(folder)
    return save_model(folder, small_model(tokenizer, 0), tokenizer)


def nbytes(model: torch.nn.Module) -> int:
    """Bytes of its weights in bfloat16."""
    return 2 * sum(parameter.numel() for parameter in model.parameters())
