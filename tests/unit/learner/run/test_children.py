"""Child processes come up or say why, and none is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.learner.run.children import Child, ChildError, stop_children


def child_of(directory: Path, script: str) -> Child:
    """A process that runs `script`, as if it had been started as a child."""
    log, address = directory / "log", directory / "address.json"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=directory,
        )
    return Child("service of the test", process, log, address)


SERVING = """
import json, os
with open("written", "w") as file:
    json.dump({"address": "unix:/x", "pid": os.getpid()}, file)
os.replace("written", "address.json")
"""


async def test_the_address_is_what_the_child_wrote_once_it_served(tmp_path: Path) -> None:
    child = child_of(tmp_path, SERVING + "import sys; sys.stdin.read()")
    try:
        assert await child.address(within=30) == "unix:/x"
    finally:
        stop_children([child], grace=5)


async def test_the_address_of_a_killed_run_s_child_is_not_taken_for_this_one_s(
    tmp_path: Path,
) -> None:
    """S12: a child of the dead learner that was still starting writes to the same file."""
    child = child_of(tmp_path, "import sys; sys.stdin.readline();" + SERVING + "sys.stdin.read()")
    try:
        dead = {"address": "unix:/dead", "pid": os.getpid()}
        (tmp_path / "address.json").write_text(json.dumps(dead))
        asked = asyncio.create_task(child.address(within=60))
        done, _ = await asyncio.wait([asked], timeout=0.1)
        assert not done
        assert child.process.stdin is not None
        child.process.stdin.write(b"serve\n")
        child.process.stdin.flush()
        assert await asked == "unix:/x"
    finally:
        stop_children([child], grace=5)


async def test_a_child_that_ends_at_start_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    child = child_of(tmp_path, "import sys; print('the model is gone'); sys.exit(3)")
    with pytest.raises(
        ChildError, match=r"(?s)the service of the test ended with code 3.*the model is gone"
    ):
        await child.address(within=30)


async def test_a_child_that_never_serves_is_named_after_its_time(tmp_path: Path) -> None:
    child = child_of(tmp_path, "import sys; sys.stdin.read()")
    try:
        with pytest.raises(ChildError, match=r"did not serve within 0.1 s \(start_timeout\)"):
            await child.address(within=0.1)
    finally:
        stop_children([child], grace=5)


async def test_the_exit_code_of_a_child_is_told(tmp_path: Path) -> None:
    child = child_of(tmp_path, "import sys; sys.exit(7)")
    async with asyncio.timeout(30):
        assert await child.ended() == 7


async def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + SERVING
        + "while True: time.sleep(1)"
    )
    child = child_of(tmp_path, stubborn)
    await child.address(within=30)
    stop_children([child], grace=0.2)
    assert child.process.returncode == -signal.SIGKILL


def test_a_real_service_that_cannot_load_its_model_says_so(tmp_path: Path) -> None:
    child = Child.start(
        "generation service of agent 0",
        ["serve", "generation", "--model", str(tmp_path / "nowhere"), "--port", "0"],
        log_file=tmp_path / "logs" / "generation_0.log",
        address_file=tmp_path / "address.json",
        environ={"HF_HUB_OFFLINE": "1"},
    )
    with pytest.raises(ChildError, match=r"(?s)generation_0.log ends with.*nowhere"):
        asyncio.run(child.address(within=120))
