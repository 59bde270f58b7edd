"""Tokenizers and models small enough to train in a test, made here and saved as folders.

Two tokenizers: `words` reads and writes words parted by blanks (each word is a token, so a text
is its tokens), `bytes` is byte-level BPE with a few merges (any text; several spellings of one
text, characters split over tokens). Both are saved as a plain `PreTrainedTokenizerFast`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from tokenizers.processors import TemplateProcessing
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BOS, EOS, PAD, UNK, SECOND_END = "<s>", "</s>", "<pad>", "<unk>", "<|turn|>"
COLOURS = ("red", "green", "blue", "one", "two", "three", "cat", "dog")
VERBS = ("sings", "replies", "again", "longer", "shorter", "answer", "was", "ratio")
WORDS = (*"abcdefgh", *COLOURS, *VERBS)
MERGES = (("t", "h"), ("th", "e"), ("a", "n"), ("an", "d"), ("Ġ", "the"), ("i", "n"))
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}answer{% endif %}"
)


def tiny_tokenizer(
    directory: Path,
    *,
    kind: Literal["words", "bytes"] = "words",
    pad: bool = True,
    add_bos: bool = False,
    words: Sequence[str] = WORDS,
) -> PreTrainedTokenizerFast:
    """Makes a tokenizer, saves it to `directory` and returns it as loaded from there.

    Args:
        directory: Where it is saved; made where it is missing.
        kind: `words` (about thirty tokens) or `bytes` (byte-level BPE, about 270 tokens).
        pad: Whether it has a pad token.
        add_bos: Whether encoding puts the begin token in front (with special tokens on).
        words: The vocabulary of `words`.

    All variants hold `SECOND_END`, which a model may name as a second end token.
    """
    specials = [UNK, BOS, EOS, SECOND_END, *([PAD] if pad else [])]
    if kind == "words":
        vocabulary = {token: i for i, token in enumerate([*specials, *words])}
        raw = Tokenizer(tokenizer_models.WordLevel(vocabulary, unk_token=UNK))
        raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        merged = [left + right for left, right in MERGES]
        vocabulary = {token: i for i, token in enumerate([*specials, *alphabet, *merged])}
        raw = Tokenizer(tokenizer_models.BPE(vocab=vocabulary, merges=list(MERGES)))
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        raw.decoder = decoders.ByteLevel()
    if add_bos:
        raw.post_processor = TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])]
        )
    names: dict[str, Any] = {"unk_token": UNK, "bos_token": BOS, "eos_token": EOS}
    if pad:
        names["pad_token"] = PAD
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        additional_special_tokens=[SECOND_END],
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
        **names,
    )
    tokenizer.save_pretrained(directory)
    return PreTrainedTokenizerFast.from_pretrained(directory)


def tiny_model(
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    tie: bool = True,
    *,
    context: int = 256,
    two_ends: bool = False,
    spread: float = 0.3,
    dropout: float = 0.0,
    head_size: int = 8,
) -> LlamaForCausalLM:
    """A random Llama of two layers, 16 wide, some five thousand parameters (`words`).

    Args:
        tokenizer: Fixes the vocabulary and the special ids.
        seed: Fixes the weights; PyTorch's own generator is left as it was.
        tie: Whether the head shares the embedding's weights.
        context: Context length in tokens.
        two_ends: Whether `SECOND_END` ends a completion too.
        spread: Standard deviation of the weights; small makes every token about as likely.
        dropout: Attention dropout, to prove that training runs without.
        head_size: Width of each of the two heads; some kernels take 32 at least.
    """
    ends: int | list[int] = tokenizer.eos_token_id
    if two_ends:
        ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(SECOND_END)]
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=2 * head_size,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context,
        tie_word_embeddings=tie,
        initializer_range=spread,
        attention_dropout=dropout,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=ends,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=ends, pad_token_id=tokenizer.pad_token_id
    )
    return model.eval()


def save_model(
    directory: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> Path:
    """Saves both to one folder, as a hub would hold them, and returns the folder."""
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def tiny_folder(
    directory: Path,
    *,
    seed: int = 0,
    tie: bool = True,
    kind: Literal["words", "bytes"] = "words",
    pad: bool = True,
    add_bos: bool = False,
    **model_options: Any,
) -> Path:
    """A folder with a tiny tokenizer and a tiny model (options as above); returns the folder."""
    tokenizer = tiny_tokenizer(directory, kind=kind, pad=pad, add_bos=add_bos)
    return save_model(directory, tiny_model(tokenizer, seed, tie, **model_options), tokenizer)
