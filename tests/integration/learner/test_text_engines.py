"""Runs whose agents are served by programs that take text, text-generation-inference above all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.services.generation.engines.served import Served, on_running_tgi, on_tgi
from tests.integration.services.generation.engines.test_documented_capabilities import on_openai
from tests.support import run_folders
from tests.support.tgi.server import Control
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphon.clients.types import FieldError
from antiphon.learner import MAGRPOConfig, MAGRPOTrainer
from antiphon.learner.config.run_file import load_run_config
from antiphon.learner.run.dry_run import inspect_run
from antiphon.services.common.models import encode_prompt, load_tokenizer

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


DRY_RUN = """
[magrpo]
num_turns = 1
max_new_tokens = 6
top_k = 20
{magrpo}

[[agents]]
model = "{model}"
addresses = ["{address}"]

[[agents]]
model = "{model}"

[reward]
function = "examples.length_ratio:length_ratio_reward"

[dataset]
prompts = ["the dragon sings"]
"""


@contextmanager
def served(
    folder: Path,
    control: Control,
    opens: Sequence[Callable[..., AbstractAsyncContextManager[Served]]] = (on_tgi, on_running_tgi),
    **limits: int,
) -> Iterator[list[str]]:
    """Addresses of services, by default one whose server takes pushes and one of somebody else's
    server."""
    addresses: Future[list[str]] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(open_(folder, control, **limits)) for open_ in opens
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
    tiny_folders: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """L7, L13: the engine's log-probabilities are the learner's, within kept sets too, and by how
    much they differ is told, and warned of above the bound; the trained agent is pushed, the frozen
    one is not."""
    folder = tiny_folders(seed=1, kind="bytes", add_bos=True, head_size=32)
    control = Control(tmp_path / "control")
    with served(folder, control) as addresses:
        trainer = trainer_of(folder, addresses, tmp_path / "run", engine_gap_bound=1e-9)
        before = [p.detach().clone() for p in trainer.agents[0].parameters()]
        trainer.train()
    sent = control.notes("request")
    assert {note["inputs"] for note in sent} == {"the dragon sings", "the dragon sings again"}
    (row,) = run_folders.metrics(run_folders.find(tmp_path / "run"))
    assert row["agent_0/logprob_gap_max"] < 1e-3
    assert 1e-9 < row["agent_0/engine_gap_mean"] <= row["agent_0/engine_gap_max"] < 1e-3
    assert row["agent_0/engine_ratio_max"] == pytest.approx(1.0, abs=1e-3)
    said = capsys.readouterr()
    assert (said.out + said.err).count("engine_gap_bound is 1e-09") == 1
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


@pytest.mark.parametrize(
    ("limit", "new", "said"),
    [
        ("max_input_tokens", 0, "where its services take prompts of at most"),
        ("max_total_tokens", CONFIG.max_new_tokens, "and max_new_tokens 6 exceed the"),
    ],
)
def test_a_server_whose_limits_do_not_fit_the_run_is_refused_at_its_start(
    tiny_folders: Callable[..., Path],
    tmp_path: Path,
    limit: str,
    new: int,
    said: str,
) -> None:
    """L12: by the first prompt that does not fit, before anything is pushed or sampled."""
    folder = tiny_folders(seed=1, kind="bytes", add_bos=True, head_size=32)
    control = Control(tmp_path / "control")
    tokens = len(encode_prompt(load_tokenizer(folder), "the dragon sings"))
    most = tokens + new - 1
    with served(folder, control, **{limit: most}) as addresses:
        trainer = trainer_of(folder, addresses, tmp_path / "run")
        with pytest.raises(FieldError, match=rf"\[0\].*agent 0.*of {tokens} tokens.*{said} {most}"):
            trainer.train()
    assert control.notes("request") == []
    assert len(control.notes("load")) == 1


def test_the_check_of_a_run_says_that_a_chat_api_cannot_be_trained(
    tiny_folders: Callable[..., Path], tmp_path: Path
) -> None:
    """It tells no ids and no log-probabilities; it may serve an agent that is not trained."""
    folder = tiny_folders(seed=1, kind="bytes", add_bos=True, head_size=32)
    with served(folder, Control(tmp_path / "control"), [on_openai]) as (address,):
        for magrpo, missing in (
            ("", "full pushes of weights"),
            ("trainable = [false, true]", None),
        ):
            file = tmp_path / "run.toml"
            file.write_text(DRY_RUN.format(magrpo=magrpo, model=folder, address=address))
            found = inspect_run(load_run_config(file))
            wrong = [finding for finding in found.findings if not finding.ok]
            if missing is None:
                assert wrong == []
            else:
                assert [finding.what for finding in wrong] == [f"agents[0] at {address}"]
                assert "'openai' without" in wrong[0].detail
                assert missing in wrong[0].detail
                assert "log-probabilities" in wrong[0].detail
