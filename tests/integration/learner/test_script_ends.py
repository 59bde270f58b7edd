"""How a script's run ends from outside: signals, a kill, StopRun. Nothing is ever left over."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import Processes, Started, wait_until

from antiphon.clients.learner import LearnerClient
from antiphon.clients.types import Run, RunState

ROOT = Path(__file__).parents[3]

# No `if __name__ == "__main__"`: nothing of a run imports the script again.
SCRIPT = """
import signal, sys, time
from pathlib import Path
from tests.support.models import tiny_model, tiny_tokenizer
from antiphon.learner import MAGRPOConfig, MAGRPOTrainer

tokenizer = tiny_tokenizer(Path("tokenizer"))

def hold_on():
    Path("reward_called").touch()
    while Path("hold").exists():
        time.sleep(0.01)

def reward(a, b):
    while {swallows}:
        try:
            hold_on()
            break
        except BaseException:
            Path("caught").touch()
    hold_on()
    return [float(len(b[0]) - len(a[0]))]

trainer = MAGRPOTrainer(
    agents=[tiny_model(tokenizer, seed) for seed in range(2)],
    tokenizer=tokenizer,
    reward_func=reward,
    train_dataset=[{{"prompt": "red green"}}, {{"prompt": "one two"}}],
    args=MAGRPOConfig(num_turns=1, num_train_epochs=1000, num_generations=2, max_new_tokens=4),
    run_name="the-run",
)
def handlers():
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

before = handlers()
try:
    trainer.train()
finally:
    ended = sys.exc_info()[0]
    restored = handlers() == before
    print("ended by", ended and ended.__name__, "handlers restored", restored, flush=True)
"""


def start(processes: Processes, directory: Path, *, hold: bool, swallows: bool = False) -> Started:
    """The script, once its reward has been called, which may swallow every exception."""
    if hold:
        (directory / "hold").touch()
    (directory / "script.py").write_text(SCRIPT.format(swallows=swallows))
    script = processes.start(
        "script",
        [sys.executable, "script.py"],
        cwd=directory,
        environ={"PYTHONPATH": str(ROOT)},
    )

    def called() -> bool:
        assert script.popen.poll() is None, script.log
        return (directory / "reward_called").exists()

    wait_until(called, timeout=120, what="the reward is called")
    return script


def summary(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "runs/the-run/summary.json").read_text())
    return found


@pytest.mark.parametrize(
    ("number", "code", "name"),
    [(signal.SIGINT, 130, "KeyboardInterrupt"), (signal.SIGTERM, 143, "SystemExit")],
)
def test_the_first_signal_ends_the_run_in_order_and_its_children_with_it(
    processes: Processes, tmp_path: Path, number: signal.Signals, code: int, name: str
) -> None:
    """S13: the rollout under way, user code in the middle of its work included, is dropped."""
    script = start(processes, tmp_path, hold=True)
    assert len(processes.alive()) == 4  # the script, its nursery, and one service per agent
    script.popen.send_signal(number)
    ended = script.wait(timeout=30)
    # An uncaught KeyboardInterrupt ends Python by SIGINT itself.
    assert ended in ((code, -signal.SIGINT) if number is signal.SIGINT else (code,)), script.log
    assert f"{number.name}: the run ends in order; a second one ends it at once" in script.log
    assert f"ended by {name} handlers restored True" in script.log
    assert summary(tmp_path)["state"] == "stopped"
    folder = tmp_path / "runs" / "the-run"
    assert (
        f"the run is stopped ({number.name}) after 0 of 2000 prompts, in epoch 1; "
        f'to go on: trainer.train(resume_from_checkpoint="{folder}")'
    ) in script.log
    processes.assert_none_left()


def test_a_second_ctrl_c_ends_the_process_at_once(processes: Processes, tmp_path: Path) -> None:
    """S13: even when user code swallows every exception."""
    script = start(processes, tmp_path, hold=True, swallows=True)
    script.popen.send_signal(signal.SIGINT)
    wait_until((tmp_path / "caught").exists, timeout=30, what="the first signal has come through")
    script.popen.send_signal(signal.SIGINT)
    assert script.wait(timeout=3) == 130
    assert "ended by" not in script.log
    processes.assert_none_left()


def test_children_end_when_the_script_is_killed(processes: Processes, tmp_path: Path) -> None:
    script = start(processes, tmp_path, hold=True)
    assert len(processes.alive()) == 4  # the script, its nursery, and one service per agent
    script.popen.kill()
    processes.assert_none_left(timeout=20)


async def test_a_run_is_paused_resumed_and_stopped_from_outside(
    processes: Processes, tmp_path: Path
) -> None:
    script = await asyncio.to_thread(start, processes, tmp_path, hold=False)
    address = json.loads((tmp_path / "runs/the-run/learner.json").read_text())["address"]
    states: list[RunState] = []
    async with asyncio.timeout(60), LearnerClient(address) as client:
        await client.pause(5)
        async for event in client.watch():
            if not isinstance(event.event, Run):
                continue
            run = event.event
            if not states or run.state is not states[-1]:
                states.append(run.state)
            if run.state is RunState.PAUSED:
                paused = await client.get_run(5)
                assert paused.prompts_done == run.prompts_done
                await client.resume(5)
            elif RunState.PAUSED in states and run.state is RunState.TRAINING:
                await client.stop("the test has seen enough", 5)
    assert await asyncio.to_thread(script.wait, timeout=30) == 0
    assert "ended by None" in script.log
    assert states[-1] is RunState.STOPPED
    assert states[:3] == [RunState.STARTING, RunState.TRAINING, RunState.PAUSED] or states[:2] == [
        RunState.TRAINING,
        RunState.PAUSED,
    ]
    assert summary(tmp_path)["state"] == "stopped"
    processes.assert_none_left()
