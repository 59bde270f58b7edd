"""Tokens that change while a run calls with them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.models import save_model, tiny_model, tiny_tokenizer
from tests.support.processes import Processes
from tests.support.trainers import one_agent_trainer

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError
from antiphon.clients.generation import GenerationClient
from antiphon.clients.retry import RetryPolicy
from antiphon.learner import MAGRPOTrainer

OLD, NEW = "the-token-of-yesterday", "the-token-of-tomorrow"
ROWS = [{"prompt": prompt} for prompt in ("a red cat", "two dog b", "green c", "one", "blue e")]


def replace(path: Path, text: str) -> None:
    """The whole file at once, so that nobody reads half of it."""
    written = path.with_suffix(".new")
    written.write_text(text)
    written.replace(path)


def callers(*tokens: str) -> str:
    listed = ", ".join(f'"{token}"' for token in tokens)
    return f'[learner]\nroles = ["generate", "push"]\ntokens = [{listed}]\n'


@dataclass
class Guarded:
    """A generation service that knows callers by the files `token` and `callers.toml`."""

    folder: Path
    address: str

    def trainer(
        self, folder: Path, after: dict[int, Callable[[], None]], **options: Any
    ) -> MAGRPOTrainer:
        """A run that calls with the token in `mine`; `after` so many prompts something is done."""
        scored = 0

        def reward(texts: list[str]) -> list[float]:
            nonlocal scored
            scored += 1
            if scored % 2 == 0 and scored // 2 in after:
                after[scored // 2]()
            return [float(len(text)) for text in texts]

        tokenizer = tiny_tokenizer(folder / "tokenizer")
        endpoint = Endpoint(address=self.address, token_file=self.folder / "mine")
        return one_agent_trainer(
            folder,
            tiny_model(tokenizer, 0),
            tokenizer,
            [endpoint],
            reward,
            ROWS,
            {"replicas_timeout": 30.0},
            **options,
        )

    def answer(self, token: str) -> grpc.StatusCode | None:
        """What a caller with this token is refused with; None where it is let in."""
        file = self.folder / "asking"
        file.write_text(token)

        async def ask() -> grpc.StatusCode | None:
            endpoint = Endpoint(address=self.address, token_file=file)
            async with GenerationClient(endpoint, retry=RetryPolicy(attempts=1)) as client:
                try:
                    await client.get_model_info(30)
                except CallError as error:
                    return error.code
                return None

        return asyncio.run(ask())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    tokenizer = tiny_tokenizer(folder / "model")
    save_model(folder / "model", tiny_model(tokenizer, 0), tokenizer)
    (folder / "token").write_text("nobody-has-this-one")
    (folder / "callers.toml").write_text(callers(OLD))
    with Processes(folder) as processes:
        started = processes.serve(
            *("agent", "generation", "--model", "model", "--no-weights", "--run-lease", "0"),
            *("--token-file", "token", "--access-file", "callers.toml"),
        )
        yield Guarded(folder, started.address())


def summary(folder: Path) -> tuple[str, int]:
    told = json.loads((folder / "run" / "summary.json").read_text())
    return told["state"], told["prompts"]


def test_two_tokens_of_a_caller_change_one_after_the_other_under_a_run(
    guarded: Guarded, tmp_path: Path
) -> None:
    """S18: no call is refused, and the old token opens nothing at the end."""
    replace(guarded.folder / "callers.toml", callers(OLD))
    replace(guarded.folder / "mine", OLD)
    after = {
        1: lambda: replace(guarded.folder / "callers.toml", callers(OLD, NEW)),
        2: lambda: replace(guarded.folder / "mine", NEW),
        3: lambda: replace(guarded.folder / "callers.toml", callers(NEW)),
    }
    guarded.trainer(tmp_path, after).train()
    assert summary(tmp_path) == ("finished", 5)
    assert guarded.answer(NEW) is None
    assert guarded.answer(OLD) is grpc.StatusCode.UNAUTHENTICATED


def test_one_token_that_changes_on_one_side_ends_the_run_which_can_be_resumed(
    guarded: Guarded, tmp_path: Path
) -> None:
    """S18: a token file holds one; nothing lasts until the other side has it too."""
    replace(guarded.folder / "token", OLD + "-of-all")
    replace(guarded.folder / "mine", OLD + "-of-all")
    after = {2: lambda: replace(guarded.folder / "token", NEW + "-of-all")}
    with pytest.raises(CallError, match="UNAUTHENTICATED: the token is not this server's"):
        guarded.trainer(tmp_path, after).train()
    assert summary(tmp_path) == ("failed", 1)  # the second is updated, and its push refused
    replace(guarded.folder / "mine", NEW + "-of-all")
    guarded.trainer(tmp_path, {}).train(resume_from_checkpoint=True)
    assert summary(tmp_path) == ("finished", 5)
