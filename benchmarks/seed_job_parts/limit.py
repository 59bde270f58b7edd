"""What a period of a job takes at least on this machine: its products and its reads, nothing else.

An update needs the operations of `benchmarks.update_parts.flops`. A decode step of an agent reads
all weights once, and computes two operations per parameter and row; the longer one counts. Both at
the speed of plain products, of matrices and of a matrix with a vector, on all cores.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from benchmarks.seed_job_parts.job import NUM_AGENTS, TEXTS, Job
from benchmarks.update_parts.flops import flops, needed_of, product_rate
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

SECONDS = 3.0
READ_ROWS, READ_WIDTH = 1 << 18, 512
_FLOAT = 4


@dataclass(frozen=True)
class Limit:
    """The least that a period can take, in seconds, and the rates that this follows from."""

    sampling: float
    update: float
    product_gflop_per_second: float
    read_gigabytes_per_second: float

    @property
    def period(self) -> float:
        """Sampling and update, one after the other: strictly on-policy."""
        return self.sampling + self.update


def least_seconds(job: Job, folder: Path) -> Limit:
    """Those of a job with the model in `folder`, in float32, while nothing else runs."""
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = round(statistics.mean(len(tokenizer(text).input_ids) for text in TEXTS))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    generations, tokens = job.num_generations, job.max_new_tokens
    products, reads = _on_all_cores(product_rate), _on_all_cores(_read_rate)
    nodes = NUM_AGENTS * job.prompts * job.nodes
    update = nodes * flops(model, needed_of(prompt, generations, tokens)) / products
    sampling = nodes * 2 * parameters * prompt / products
    for turn in range(job.num_turns):
        rows = job.prompts * generations ** (turn + 1)
        step = max(_FLOAT * parameters / reads, 2 * parameters * rows / products)
        sampling += NUM_AGENTS * tokens * step
    return Limit(sampling, update, products / 1e9, reads / 1e9)


def _on_all_cores(rate: Callable[[float], float]) -> float:
    cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        total = sum(pool.map(rate, [SECONDS] * cores))
    torch.set_num_threads(threads)
    return total


def _read_rate(seconds: float) -> float:
    """Bytes/s of a matrix that no cache holds, times a vector, by this thread."""
    matrix, vector = torch.ones(READ_ROWS, READ_WIDTH), torch.ones(READ_WIDTH)
    out = torch.empty(READ_ROWS)
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        torch.mv(matrix, vector, out=out)
        count += 1
    return count * matrix.nbytes / passed
