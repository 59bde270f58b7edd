"""What a generation service does with the bytes of a full push, step by step, without the wire."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from antiphon.clients.digest import chunk_checksum
from antiphon.clients.push import CHUNK_BYTES
from antiphon.clients.types import PushHeader, WeightsChunk
from antiphon.services.common.tensors import from_bytes
from antiphon.services.generation.few_rows import multiply_few_rows_fast
from antiphon.services.generation.new_weights import NewWeights
from antiphon.services.generation.staging import Staging


def processor_seconds(
    folder: Path, header: PushHeader, buffers: Sequence[memoryview], rounds: int
) -> tuple[list[float], list[float]]:
    """Processor seconds of each round: to check and stage the bytes, and to make weights of them.

    Args:
        folder: Of the model.
        header: Of the push.
        buffers: Its tensors.
        rounds: How often.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    multiply_few_rows_fast(model)
    chunks = list(_chunks(buffers))
    staged, made = [], []
    for _ in range(rounds):
        began = time.process_time()
        staging = Staging(header)
        for chunk in chunks:
            staging.add(chunk)
        whole = time.process_time()
        pushed = {
            one.spec.name: from_bytes(one.data, one.spec.dtype, one.spec.shape)
            for one in staging.tensors()
        }
        new = NewWeights(model, pushed)
        ended = time.process_time()
        new.put_in()
        staged.append(whole - began)
        made.append(ended - whole)
    return staged, made


def _chunks(buffers: Sequence[memoryview]) -> Iterator[WeightsChunk]:
    for index, buffer in enumerate(buffers):
        for start in range(0, buffer.nbytes, CHUNK_BYTES):
            part = buffer[start : start + CHUNK_BYTES]
            yield WeightsChunk(index, start, part, chunk_checksum(part))
