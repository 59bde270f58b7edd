"""Generation services that several tests train on, one run after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.models import save_model, tiny_model, tiny_tokenizer
from tests.support.processes import Processes
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


@dataclass
class Served:
    """Three services that any run may take at once, for models with a head of their own."""

    tokenizer: PreTrainedTokenizerFast
    addresses: list[str]

    def model(self, seed: int, **options: Any) -> LlamaForCausalLM:
        """A model that the services can take the weights of; `options` as of `tiny_model`."""
        return tiny_model(self.tokenizer, seed, tie=False, two_ends=True, **options)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Started without weights. Tokenizer without a pad token, with a begin token; two end tokens.

    Starting a service takes seconds, and what differs between the runs of a test (weights, context
    length, sampling) is the learner's.
    """
    folder = tmp_path_factory.mktemp("served")
    tokenizer = tiny_tokenizer(folder, pad=False, add_bos=True)
    served = Served(tokenizer, [])
    save_model(folder, served.model(0), tokenizer)
    options = ("generation", "--model", str(folder), "--no-weights", "--run-lease", "0")
    with Processes(folder) as processes:
        started = [processes.serve(f"agent_{agent}", *options) for agent in range(3)]
        served.addresses = [service.address() for service in started]
        yield served
