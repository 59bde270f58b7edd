"""An agent's one service is away for longer than calls are tried again, and comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.e2e.tiny_task import reward as weigh
from tests.support.models import save_model, tiny_model, tiny_tokenizer
from tests.support.processes import Processes, Started, wait_until
from tests.support.trainers import one_agent_trainer

from antiphon.clients.errors import CallError
from antiphon.learner import MAGRPOTrainer

ROWS = [{"prompt": prompt} for prompt in ("a red cat", "two dog b", "green c")]


class OneService:
    """A generation service on a unix socket, started without weights."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes = processes
        self._folder = folder
        self.address = f"unix:{folder / 'agent.sock'}"
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        self._now: Started = self._processes.antiphon(
            f"agent-{self.starts}",
            *("serve", "generation", "--model", str(self._folder / "model"), "--no-weights"),
            *("--host", self.address, "--run-lease", "0", "--no-metrics"),
        )

    def kill(self) -> None:
        self._now.popen.kill()
        self._now.popen.wait()


def trainer_of(
    service: OneService, folder: Path, reward: Callable[[list[str]], list[float]], patience: float
) -> MAGRPOTrainer:
    """Two failures of a call are enough to give it up."""
    tokenizer = tiny_tokenizer(folder / "tokenizer")
    return one_agent_trainer(
        folder,
        tiny_model(tokenizer, 0),
        tokenizer,
        [service.address],
        reward,
        ROWS,
        {
            "agent_learning_rate": 1e-2,
            "replicas_timeout": patience,
            "retry": {"attempts": 2, "initial_backoff": 0.01, "max_backoff": 0.01},
        },
    )


def test_an_agent_that_is_away_is_waited_for_and_nothing_else_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S3, S5: like a pod that loads its model again; the terminal says why it waits."""
    tokenizer = tiny_tokenizer(tmp_path / "model")
    save_model(tmp_path / "model", tiny_model(tokenizer, 0), tokenizer)
    said: list[str] = []

    def told(text: str) -> bool:
        said.append(capsys.readouterr().err)
        return text in "".join(said)

    with Processes(tmp_path) as processes:
        service = OneService(processes, tmp_path)
        scored: list[int] = []

        def start_again() -> None:
            wait_until(lambda: told("waiting for agent 0"), timeout=100, what="it says so")
            service.start()

        starts = threading.Thread(target=start_again)

        def kills(texts: list[str]) -> list[float]:
            scored.append(len(texts))
            if len(scored) == 2:
                service.kill()
                starts.start()
            return [weigh([text]) for text in texts]

        disturbed = trainer_of(service, tmp_path / "disturbed", kills, patience=200)
        disturbed.train()
        starts.join()
        assert service.starts == 2
        assert told(
            f"waiting for agent 0, at {service.address}, for up to 200 s (replicas_timeout): "
        )
        assert told("agent 0 is asked again, after ")

        quiet = trainer_of(
            service, tmp_path / "quiet", lambda texts: [weigh([text]) for text in texts], 200
        )
        quiet.train()
        for name, tensor in quiet.agents[0].state_dict().items():
            assert torch.equal(tensor, disturbed.agents[0].state_dict()[name]), name

        def ends(texts: list[str]) -> list[float]:
            service.kill()
            return [weigh([text]) for text in texts]

        over = trainer_of(service, tmp_path / "over", ends, patience=0.5)
        with pytest.raises(CallError, match=r"could not be asked for 0.5 s \(replicas_timeout\)"):
            over.train()
        saved = [path.name for path in (tmp_path / "over" / "run" / "checkpoints").iterdir()]
        assert saved == ["checkpoint-00000001"]
