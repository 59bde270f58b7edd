"""`antiphon serve reward` and `serve_reward` as processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import Processes, Started, command, wait_until

from antiphon.clients.errors import CallError
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.reward import RewardClient
from antiphon.clients.types import AgentAction, JointAction, Phase, Task

MODULE = """
import ctypes, multiprocessing, os, pathlib, threading

os.register_at_fork(before=lambda: print("FORKED", flush=True))

def length(first, second):
    return [len(b) / (len(a) + 1) for a, b in zip(first, second)]

def hang(first, second):
    threading.Event().wait()

def stubborn(first, second):
    while True:
        try:
            print("HELD", flush=True)
            threading.Event().wait()
        except BaseException:
            pass

def kill(first, second):
    os._exit(3)

def hold(first, second):
    pathlib.Path("held").touch()
    ctypes.PyDLL(None).sleep(35)  # without letting go of the interpreter, as a regex may
    return [0.0]

def fail(first, second):
    return {}["x"]

def in_processes(first, second):
    with multiprocessing.Pool(1) as pool:
        return pool.map(float, ["0.25"])
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    """A module in the directory where the processes run."""
    (tmp_path / "my_rewards.py").write_text(MODULE)
    return "my_rewards"


async def score(address: str, *, attempts: int = 1) -> Any:
    actions = (AgentAction("p", "xxx"), AgentAction("p", "yy"))
    async with RewardClient(address, retry=RetryPolicy(attempts=attempts)) as client:
        asked = [JointAction("j1", "t", 1, Phase.TRAIN, 1, actions)]
        (answer,) = await client.score("run", [Task("t", {})], asked, timeout=60)
    return answer


def written(process: Started, text: str) -> None:
    wait_until(lambda: text in process.log, timeout=60, what=f"{text!r} in the log")


async def test_a_function_of_the_current_directory_is_served_until_sigterm(
    processes: Processes, module: str
) -> None:
    service = processes.serve("reward", "reward", f"{module}:length")
    assert (await score(service.address())).value == 0.5
    assert service.terminate() == 0
    assert "calling my_rewards.length for joint action j1" in service.log
    assert "FORKED" not in service.log


async def test_a_pool_of_user_code_is_spawned_not_forked(processes: Processes, module: str) -> None:
    """S16: a fork after gRPC has started hangs."""
    service = processes.serve("reward", "reward", f"{module}:in_processes")
    assert (await score(service.address())).value == 0.25
    assert service.terminate() == 0
    assert "FORKED" not in service.log


def test_it_ends_with_its_parent_and_ignores_ctrl_c_until_then(tmp_path: Path, module: str) -> None:
    address_file = tmp_path / "address.json"
    options = ("--exit-with-parent", "--address-file", str(address_file))
    child = subprocess.Popen(
        command("serve", "reward", f"{module}:length", "--host", f"unix:{tmp_path}/s", *options),
        stdin=subprocess.PIPE,
        cwd=tmp_path,
    )
    assert child.stdin is not None
    try:
        wait_until(address_file.exists, timeout=60, what="it serves")
        child.send_signal(signal.SIGINT)
        assert asyncio.run(score(f"unix:{tmp_path}/s")).value == 0.5
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.wait(10)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), True),
        (("--host", "0.0.0.0", "--insecure"), False),
        (("--host", "0.0.0.0", "--insecure", "--expose-tracebacks"), True),
    ],
    ids=["loopback", "network", "network that may know"],
)
async def test_a_traceback_is_told_to_this_machine_and_to_others_only_where_allowed(
    processes: Processes, module: str, options: tuple[str, ...], told: bool
) -> None:
    """U2: function, ids and error are told to everybody who may call."""
    service = processes.serve("reward", "reward", f"{module}:fail", *options)
    _, _, port = service.address().rpartition(":")
    with pytest.raises(CallError) as raised:
        await score(f"127.0.0.1:{port}")
    assert "my_rewards.fail for joint action j1: raised KeyError: 'x'" in str(raised.value)
    assert ('return {}["x"]' in str(raised.value)) is told
    assert 'return {}["x"]' in service.log


async def test_a_function_that_never_returns_ends_the_service_by_name(
    processes: Processes, module: str
) -> None:
    """U7: it exits to be replaced, and the caller learns why."""
    service = processes.serve("reward", "reward", f"{module}:hang", "--call-timeout", "0.2")
    with pytest.raises(CallError) as raised:
        await score(service.address())
    assert raised.value.reason == "USER_FUNCTION_FAILED"
    assert "my_rewards.hang for joint action j1: did not return within 0.2 s" in str(raised.value)
    assert service.wait(timeout=30) == 70
    assert "my_rewards.hang for joint action j1" in service.log


async def test_one_that_cannot_be_interrupted_ends_the_service_too(
    processes: Processes, module: str
) -> None:
    """U7"""
    service = processes.serve("reward", "reward", f"{module}:stubborn", "--call-timeout", "0.2")
    with pytest.raises(CallError, match="did not return within"):
        await score(service.address())
    assert service.wait(timeout=30) == 70
    assert "my_rewards.stubborn for joint action j1 cannot be interrupted" in service.log


async def test_one_that_kills_its_process_is_the_last_thing_logged(
    processes: Processes, module: str
) -> None:
    """U7: what is known of a killed process names function and ids."""
    service = processes.serve("reward", "reward", f"{module}:kill")
    with pytest.raises(CallError) as raised:
        await score(service.address())
    assert raised.value.transient
    assert service.wait(timeout=30) == 3
    assert "calling my_rewards.kill for joint action j1" in service.log.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_calls_that_wait_while_a_function_holds_the_interpreter_are_answered(
    processes: Processes, module: str, tmp_path: Path
) -> None:
    """S8, S15: by default gRPC cancels what a server has not looked at for 30 s."""
    service = processes.serve("reward", "reward", f"{module}:hold")
    address = service.address()
    held = asyncio.create_task(score(address))
    await asyncio.to_thread(wait_until, (tmp_path / "held").exists, timeout=60, what="it is held")
    async with RewardClient(address, retry=RetryPolicy(attempts=1)) as client:
        waiting = [client.get_info(timeout=200) for _ in range(50)]
        assert len(await asyncio.gather(*waiting)) == 50
    assert (await held).value == 0.0


async def test_a_second_signal_ends_it_at_once(processes: Processes, module: str) -> None:
    """S13"""
    options = ("--grace-seconds", "600")
    service = processes.serve("reward", "reward", f"{module}:stubborn", *options)
    address = service.address()
    call = asyncio.create_task(score(address))
    try:
        await asyncio.to_thread(written, service, "HELD")
        service.popen.send_signal(signal.SIGTERM)
        await asyncio.to_thread(written, service, "reward stops: SIGTERM")
        assert service.popen.poll() is None
        service.popen.send_signal(signal.SIGTERM)
        assert service.wait(timeout=20) == 143
    finally:
        with pytest.raises(CallError):
            await call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("my_rewards:lenght",), "did you mean 'length'?"),
        (("no_such_module:f",), "no module 'no_such_module'"),
        (("my_rewards:length", "--num-agents", "3"), "wanted 3, one per agent"),
        (("my_rewards:length", "--host", "0.0.0.0"), "--insecure"),
        (("my_rewards:length", "--token-file", "nowhere"), "nowhere"),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(
    processes: Processes, module: str, arguments: tuple[str, ...], message: str
) -> None:
    """S18 among them: off loopback without TLS and token."""
    service = processes.antiphon("reward", "serve", "reward", *arguments)
    assert service.wait(timeout=60) == 2
    (line,) = service.log.strip().splitlines()
    assert line.startswith("antiphon: ")
    assert message in line


async def test_a_script_of_three_lines_is_a_reward_service(
    processes: Processes, tmp_path: Path
) -> None:
    address_file = tmp_path / "script.address.json"
    (tmp_path / "service.py").write_text(
        "from antiphon.services.reward import serve_reward\n"
        "def reward(first, second): return [len(second[0]) / len(first[0])]\n"
        f"serve_reward(reward, address_file={str(address_file)!r})\n"
    )
    script = processes.start("script", [sys.executable, "service.py"])
    assert (await score(script.address())).value == pytest.approx(2 / 3)
    script.popen.send_signal(signal.SIGINT)
    assert script.wait(timeout=20) == 0


@pytest.mark.parametrize("option", ["port", "metrics_port", "health_port"])
@pytest.mark.parametrize("script", [False, True])
def test_a_port_that_is_taken_is_one_line_that_says_what_to_do(
    processes: Processes, tmp_path: Path, module: str, option: str, script: bool
) -> None:
    """Whichever port it is, from the command line and from a script."""
    flag = f"--{option.replace('_', '-')}"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        if script:
            (tmp_path / "service.py").write_text(
                "from antiphon.services.reward import serve_reward\n"
                f"serve_reward(lambda first: [1.0], **{ {option: port} })\n"
            )
            started = processes.start("script", [sys.executable, "service.py"])
        else:
            started = processes.antiphon(
                "reward", "serve", "reward", f"{module}:length", flag, str(port)
            )
        assert started.wait(timeout=60) == 2
    (line,) = started.log.strip().splitlines()
    assert line.startswith("antiphon: cannot ")
    assert f"127.0.0.1:{port}: Address already in use; choose another {flag}" in line


def test_help_teaches_by_example() -> None:
    shown = subprocess.run(
        command("serve", "reward", "--help"),
        env={**os.environ, "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert "antiphon serve reward length_ratio:reward --port 50061" in shown
    assert "for a, b in zip(first, second)" in shown
    for option in ("--batch-size", "--call-timeout", "--token-file", "--address-file"):
        assert option in shown
