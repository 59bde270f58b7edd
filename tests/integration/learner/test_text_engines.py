"""Runs whose agents are served by text-generation-inference, which takes text and samples ids."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.services.generation.engines.served import on_running_tgi, on_tgi
from tests.support import run_folders
from tests.support.tgi.server import Control
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphon.clients.types import FieldError
from antiphon.learner import MAGRPOConfig, MAGRPOTrainer

CONFIG = MAGRPOConfig(
    num_agents=2,
    num_train_epochs=1,
    num_generations=3,
    num_turns=2,
    max_new_tokens=6,
    agent_learning_rate=1e-8,
    temperature=0.8,
    top_k=20,
    top_p=0.9,
    wire_dtype="float32",
    rollout_buffer_size=1,
    early_termination_threshold=None,
    trainable=(True, False),
    seed=5,
)


@contextmanager
def served(folder: Path, control: Control) -> Iterator[list[str]]:
    """Addresses of two services: one whose server takes pushes, one of somebody else's server."""
    addresses: Future[list[str]] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(open_(folder, control))
                for open_ in (on_tgi, on_running_tgi)
            ]
            addresses.set_result([one.client.address for one in opened])
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield addresses.result(60)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def again(prompt: str, agent_completions: list[str], num_agents: int) -> list[str]:
    return [f"{prompt} again"] * num_agents


def trainer_of(
    folder: Path, addresses: list[str], directory: Path, **changes: Any
) -> MAGRPOTrainer:
    return MAGRPOTrainer(
        agents=[AutoModelForCausalLM.from_pretrained(folder) for _ in range(2)],
        tokenizer=AutoTokenizer.from_pretrained(folder),
        reward_func=lambda a, b: [float(len(a[0]) % 7)],
        external_transition=again,
        train_dataset=[{"prompt": "the dragon sings"}],
        args=CONFIG.model_copy(update=changes),
        generation_addresses=addresses,
        run_directory=directory,
    )


def test_text_is_sent_and_what_is_trained_are_the_ids_that_the_engine_reports(
    tiny_folders: Callable[..., Path], tmp_path: Path
) -> None:
    """L7, L13: the engine's log-probabilities are the learner's, within kept sets too; the trained
    agent is pushed, the frozen one is not."""
    folder = tiny_folders(seed=1, kind="bytes", add_bos=True, head_size=32)
    control = Control(tmp_path / "control")
    with served(folder, control) as addresses:
        trainer = trainer_of(folder, addresses, tmp_path / "run")
        before = [p.detach().clone() for p in trainer.agents[0].parameters()]
        trainer.train()
    sent = control.notes("request")
    assert {note["inputs"] for note in sent} == {"the dragon sings", "the dragon sings again"}
    (row,) = run_folders.metrics(run_folders.find(tmp_path / "run"))
    assert row["agent_0/logprob_gap_max"] < 1e-3
    assert row["agent_0/forced_tokens"] == 0
    assert "agent_1/logprob_gap_max" not in row
    after = trainer.agents[0].parameters()
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    # Begun with, published before the first batch, published after the last.
    assert len(control.notes("load")) == 3
    assert control.notes("broken") == []


def test_conversations_and_trained_agents_ask_for_more_than_such_an_engine_has(
    tiny_folders: Callable[..., Path], tmp_path: Path
) -> None:
    """Refused before the first push, by what is missing."""
    folder = tiny_folders(seed=1, kind="bytes", add_bos=True, head_size=32)
    with served(folder, Control(tmp_path / "control")) as addresses:
        for changes, missing in (
            ({"conversation": "append"}, r"agents\[0\].*'tgi' without prompts as token ids"),
            ({"trainable": True}, r"agents\[1\].*'tgi' without full pushes of weights"),
            ({"logprob_support": "full"}, "'tgi' without log-probabilities of the full softmax"),
            (
                {"reference_kl_enabled": True, "max_staleness": 1},
                r"agents\[0\].*'tgi'.*the reference KL in the returns.*max_staleness 0",
            ),
        ):
            with pytest.raises(FieldError, match=missing):
                trainer_of(folder, addresses, tmp_path / "run", **changes).train()
