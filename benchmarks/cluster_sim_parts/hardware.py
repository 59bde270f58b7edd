"""GPUs, networks and models that are assumed, and what the parts of a step cost on them.

Everything here is calculated from the tables below; nothing was measured on a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.cluster_sim_parts.costs import EngineCosts, Work

GB, TERA = 1e9, 1e12
SURE = 0.9
"""The share of a GPU's memory that is planned with."""


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """One number that the calculation takes from elsewhere."""

    name: str
    value: float
    unit: str
    source: str


ASSUMPTIONS = {
    one.name: one
    for one in (
        Assumption(
            name="matrix products of a GPU, bf16",
            value=989 * TERA,
            unit="FLOP/s",
            source="NVIDIA H100 SXM data sheet, dense",
        ),
        Assumption(
            name="memory of a GPU", value=80 * GB, unit="bytes", source="the same data sheet"
        ),
        Assumption(
            name="memory bandwidth of a GPU",
            value=3.35 * TERA,
            unit="bytes/s",
            source="the same data sheet",
        ),
        Assumption(
            name="NVLink of a GPU, one way",
            value=450 * GB,
            unit="bytes/s",
            source="the same data sheet (900 GB/s both ways)",
        ),
        Assumption(
            name="network of a GPU, one way",
            value=50 * GB,
            unit="bytes/s",
            source="NVIDIA DGX H100 data sheet: a 400 Gb/s port for each GPU",
        ),
        Assumption(name="GPUs of a node", value=8, unit="", source="the same data sheet"),
        Assumption(
            name="training, of the products",
            value=0.4,
            unit="share",
            source="Llama 3 (arXiv 2407.21783): 38 to 43 % on up to 16,384 H100s",
        ),
        Assumption(name="prefill, of the products", value=0.5, unit="share", source="assumed"),
        Assumption(name="decode, of the bandwidth", value=0.6, unit="share", source="assumed"),
        Assumption(name="collectives, of the network", value=0.8, unit="share", source="assumed"),
        Assumption(
            name="scheduler of an engine", value=0.003, unit="s per decode step", source="assumed"
        ),
        Assumption(
            name="all-reduce within a node, beside its bytes",
            value=1.5e-5,
            unit="s",
            source="assumed; two for each layer and decode step",
        ),
        Assumption(
            name="tokens of a micro-batch and GPU", value=8192, unit="tokens", source="assumed"
        ),
        Assumption(
            name="bytes of a policy per parameter",
            value=20,
            unit="bytes",
            source="docs/performance.md: during a step; sharded over the group's GPUs",
        ),
        Assumption(
            name="weights into an engine's GPU",
            value=50 * GB,
            unit="bytes/s",
            source="assumed: PCIe 5.0 x16 (64 GB/s) less overhead",
        ),
        Assumption(
            name="storage, all readers together",
            value=25 * GB,
            unit="bytes/s",
            source="assumed; object storage of one region",
        ),
        Assumption(name="from one replica to the next", value=0.002, unit="s", source="assumed"),
    )
}


def assumed(name: str) -> float:
    """A number of the table."""
    return ASSUMPTIONS[name].value


@dataclass(frozen=True, kw_only=True)
class Model:
    """A language model, from its published configuration.

    Attributes:
        name: As its publisher calls it.
        parameters: Of all weights.
        layers: Of the decoder.
        kv_heads: Heads of keys and values.
        head_size: Width of one.
        hidden: Width of the layers.
        engine_gpus: GPUs of one generation replica (tensor parallel).
        learner_gpus: The fewest GPUs of one agent's policy.
    """

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head_size: int
    hidden: int
    engine_gpus: int
    learner_gpus: int

    @property
    def weight_bytes(self) -> float:
        """Of all weights in bf16."""
        return 2 * self.parameters

    @property
    def cache_bytes(self) -> float:
        """Keys and values of one token in bf16."""
        return 2.0 * self.layers * self.kv_heads * self.head_size * 2


MODELS = {
    "0.5B": Model(
        name="Qwen2.5-0.5B",
        parameters=0.494e9,
        layers=24,
        kv_heads=2,
        head_size=64,
        hidden=896,
        engine_gpus=1,
        learner_gpus=1,
    ),
    "7B": Model(
        name="Qwen2.5-7B",
        parameters=7.62e9,
        layers=28,
        kv_heads=4,
        head_size=128,
        hidden=3584,
        engine_gpus=1,
        learner_gpus=4,
    ),
    "70B": Model(
        name="Llama-3.1-70B",
        parameters=70.6e9,
        layers=80,
        kv_heads=8,
        head_size=128,
        hidden=8192,
        engine_gpus=4,
        learner_gpus=32,
    ),
}


def engine(model: Model, context: int) -> EngineCosts:
    """A replica that shares the model over its GPUs; `context` is that of its longest rows.

    A decode step reads the weights and each row's keys and values, or computes two operations per
    parameter and row where that takes longer.
    """
    gpus = model.engine_gpus
    bandwidth = assumed("memory bandwidth of a GPU") * assumed("decode, of the bandwidth") * gpus
    products = assumed("matrix products of a GPU, bf16") * assumed("prefill, of the products")
    room = SURE * assumed("memory of a GPU") * gpus - model.weight_bytes
    reduce = 0.0
    if gpus > 1:
        reduce = 2 * model.layers * assumed("all-reduce within a node, beside its bytes")
    row = 2 * model.parameters / (products * gpus)
    if gpus > 1:
        row += 2 * model.layers * 2 * 2 * model.hidden / assumed("NVLink of a GPU, one way")
    return EngineCosts(
        step_seconds=assumed("scheduler of an engine") + reduce,
        read_seconds=model.weight_bytes / bandwidth,
        row_seconds=row,
        context_seconds=model.cache_bytes / bandwidth,
        prompt_seconds=2 * model.parameters / (products * gpus),
        places=int(min(256, room / (model.cache_bytes * context))),
    )


def trained_tokens(work: Work) -> float:
    """Tokens that pass through one agent's policy in an update: each prompt once."""
    mean = work.tokens * (1 + work.shortest) / 2
    return sum(
        nodes * (work.prompt_tokens + turn * work.turn_tokens + work.generations * mean)
        for turn, nodes in enumerate(work.nodes)
    )


def fits(model: Model, gpus: int) -> bool:
    """Whether a policy's state fits on so many GPUs, half of their memory left to activations."""
    state = assumed("bytes of a policy per parameter") * model.parameters / gpus
    return state <= SURE * assumed("memory of a GPU") - 0.25 * assumed("memory of a GPU")


def update_seconds(model: Model, work: Work, gpus: int, steps: int) -> float:
    """One agent's update on a group of GPUs that its policy is sharded over.

    Eight operations per parameter and token (activations are recomputed). Every micro-batch gathers
    the weights twice and scatters the gradients once, beside the products: the longer one counts.
    An optimiser step passes over 28 bytes per parameter.

    Args:
        model: What is trained.
        work: How much.
        gpus: Of the group; the network counts where they are more than a node's.
        steps: Optimiser steps of the update.
    """
    products = assumed("matrix products of a GPU, bf16") * assumed("training, of the products")
    tokens = trained_tokens(work)
    compute = 8 * model.parameters * tokens / (gpus * products)
    within = gpus <= assumed("GPUs of a node")
    link = assumed("NVLink of a GPU, one way" if within else "network of a GPU, one way")
    passes = max(steps, math.ceil(tokens / (gpus * assumed("tokens of a micro-batch and GPU"))))
    moved = 3 * model.weight_bytes * (gpus - 1) / gpus
    collectives = passes * moved / (link * assumed("collectives, of the network"))
    bandwidth = assumed("memory bandwidth of a GPU") * assumed("decode, of the bandwidth")
    return max(compute, collectives) + steps * 28 * model.parameters / (gpus * bandwidth)
