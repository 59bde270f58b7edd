"""The tokenizer and the tiny random Llamas of both sides, from the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from benchmarks.parity_parts.script import BOS, EOS, PAD, UNK, WORD_IDS
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

logging.disable_progress_bar()

CONTEXT = 64


def tokenizer(*, pad: str | None = PAD, add_bos: bool = False, limit: int | None = None) -> Any:
    """One token per word. `pad` names the pad token, `limit` the longest text in tokens."""
    raw = Tokenizer(WordLevel(dict(WORD_IDS), unk_token=UNK))
    raw.pre_tokenizer = WhitespaceSplit()
    if add_bos:
        raw.post_processor = TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, WORD_IDS[BOS])]
        )
    names: dict[str, Any] = {"unk_token": UNK, "bos_token": BOS, "eos_token": EOS}
    if pad is not None:
        names["pad_token"] = pad
    if limit is not None:
        names["model_max_length"] = limit
    return PreTrainedTokenizerFast(tokenizer_object=raw, **names)


def model(seed: int, *, dropout: float = 0.0) -> Any:
    """A random Llama of one layer, 16 wide."""
    config = LlamaConfig(
        vocab_size=len(WORD_IDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        attention_dropout=dropout,
        attn_implementation="eager",
        bos_token_id=WORD_IDS[BOS],
        eos_token_id=WORD_IDS[EOS],
        pad_token_id=WORD_IDS[PAD],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = LlamaForCausalLM(config).to(torch.float32)
    made.generation_config = GenerationConfig(
        bos_token_id=WORD_IDS[BOS], eos_token_id=WORD_IDS[EOS], pad_token_id=WORD_IDS[PAD]
    )
    return made.eval()


@torch.no_grad()
def move(moved: Any) -> Any:
    """The same model some way on in training: every weight larger."""
    for parameter in moved.parameters():
        parameter.mul_(1.05)
    return moved


def folder(directory: Path, seed: int) -> Path:
    """Where both sides load agent `seed`'s model from; made where it is missing."""
    path = directory / f"model-{seed}"
    if not path.exists():
        model(seed).save_pretrained(path)
    return path


def load(path: Path) -> Any:
    """A model from its folder, in evaluation mode."""
    return LlamaForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
