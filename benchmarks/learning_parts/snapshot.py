"""The start weights: a small Llama that has been fitted to write varied lists of words."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from benchmarks.learning_parts.task import OTHER_WORDS, ROLES, TOPICS, WORDS, prompt_of
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
STEPS, BATCH, LEARNING_RATE = 200, 64, 3e-3
LONGEST, ON_TOPIC = 6, 0.6


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Words parted by blanks."""
    vocabulary = {token: i for i, token in enumerate([PAD, END, UNKNOWN, *OTHER_WORDS, *WORDS])}
    raw = Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token=PAD, eos_token=END, unk_token=UNKNOWN
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Four layers, 64 wide: some 215,000 parameters."""
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        **ends,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(**ends)
    return model


def _answer(chance: random.Random, topic: str) -> str:
    """Up to six words, most of them on the topic."""
    return " ".join(
        chance.choice(TOPICS[topic] if chance.random() < ON_TOPIC else WORDS)
        for _ in range(chance.randint(1, LONGEST))
    )


def _example(chance: random.Random, vocabulary: dict[str, int]) -> tuple[list[int], int]:
    """Token ids of a prompt and its answer, and where the answer begins."""
    topic, role = chance.choice(list(TOPICS)), chance.randrange(len(ROLES))
    answers = (_answer(chance, topic), _answer(chance, topic))
    prompt = prompt_of(role, topic, answers if chance.random() < 0.5 else None)
    text = f"{prompt} {_answer(chance, topic)} {END}"
    return [vocabulary[word] for word in text.split()], len(prompt.split())


def make_snapshot(folder: Path, seed: int) -> None:
    """Fit a model from scratch to random lists and save it; takes seconds.

    The weights are rounded to bfloat16, so that what a trainer puts on the wire at the start are
    the weights that the other begins with.
    """
    torch.manual_seed(seed)
    chance = random.Random(seed)
    tokenizer = make_tokenizer()
    vocabulary = tokenizer.get_vocab()
    model = make_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        examples = [_example(chance, vocabulary) for _ in range(BATCH)]
        length = max(len(ids) for ids, _ in examples)
        inputs = torch.full((BATCH, length), tokenizer.pad_token_id)
        labels = torch.full((BATCH, length), -100)
        for row, (ids, start) in enumerate(examples):
            inputs[row, : len(ids)] = torch.tensor(ids)
            labels[row, start : len(ids)] = torch.tensor(ids[start:])
        loss = model(input_ids=inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.to(torch.bfloat16).to(torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
