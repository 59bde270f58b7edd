"""Services that are forked of a nursery are as those that are started by themselves."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.models import tiny_folder

from antiphon.learner.run import nursery as nurseries
from antiphon.learner.run.children import Child, stop_children
from antiphon.learner.run.nursery import Born, Nursery, NurseryError, child_environment


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


def start(nursery: Nursery, folder: Path, *arguments: str) -> Child:
    return Child.start(
        "generation service of agent 0",
        ["serve", "generation", *arguments],
        log_file=folder / "logs" / "generation_0.log",
        address_file=folder / "address.json",
        environ=child_environment(threads=1),
        nursery=nursery,
    )


async def test_a_forked_service_serves_and_ends_when_its_input_does(
    nursery: Nursery, tmp_path: Path
) -> None:
    tiny_folder(tmp_path / "model")
    socket = f"unix:{tmp_path / 'socket'}"
    child = start(nursery, tmp_path, "--model", str(tmp_path / "model"), "--host", socket)
    try:
        assert await child.address(within=60) == socket
        assert os.getpgid(child.process.pid) == child.process.pid
        assert child.process.stdin is not None
        child.process.stdin.close()
        async with asyncio.timeout(30):
            assert await child.ended() == 0
    finally:
        stop_children([child], grace=5)
    assert "the parent is gone" in child.log_end()


async def test_a_forked_service_that_is_killed_has_the_code_of_its_signal(
    nursery: Nursery, tmp_path: Path
) -> None:
    tiny_folder(tmp_path / "model")
    socket = f"unix:{tmp_path / 'socket'}"
    child = start(nursery, tmp_path, "--model", str(tmp_path / "model"), "--host", socket)
    await child.address(within=60)
    child.kill()
    stop_children([child], grace=5)
    assert child.process.returncode == -signal.SIGKILL


def test_a_forked_service_that_cannot_start_says_why(nursery: Nursery, tmp_path: Path) -> None:
    child = start(nursery, tmp_path, "--model", str(tmp_path / "nowhere"))
    assert child.process.wait(60) == 2
    assert "nowhere" in child.log_end()


async def test_services_start_without_a_nursery_that_is_gone(tmp_path: Path) -> None:
    gone = Nursery()
    gone.close()
    with (tmp_path / "log").open("wb") as log, pytest.raises(NurseryError):
        gone.start(["--version"], output=log, environ={})
    child = start(gone, tmp_path, "--model", str(tmp_path / "nowhere"))
    assert child.process.wait(120) == 2
    assert "nowhere" in child.log_end()


def test_a_nursery_that_cannot_import_says_why_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(nurseries, "IMPORTED", ("no_such_module",))
    broken = Nursery()
    children = [start(broken, tmp_path, "--no-such-option") for _ in range(2)]
    broken.close()
    stop_children(children, grace=0)
    (record,) = [r for r in caplog.records if r.name == "antiphon.learner.run.children"]
    assert "No module named 'no_such_module'" in record.getMessage()


def test_what_another_thread_hears_of_a_birth_reaches_who_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A thread asks about children all the time while another one starts some."""
    monkeypatch.setattr(nurseries, "IMPORTED", ("antiphon.clients.cli",))
    nursery, done = Nursery(), threading.Event()

    def ask() -> None:
        while not done.is_set():
            nursery.exit_code(1, 0.0)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        with (tmp_path / "log").open("wb") as log:
            born = [nursery.start(["--version"], output=log, environ={}) for _ in range(10)]
        assert [child.wait(60) for child in born] == [0] * 10
    finally:
        done.set()
        asking.join()
        nursery.close()


def test_who_waits_for_a_service_hears_of_a_nursery_that_is_ending(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has closed its socket, and has not ended yet."""
    ending = "import os, time\nos.close(0)\nos.closerange(3, 64)\ntime.sleep(0.3)\nos._exit(1)\n"
    (tmp_path / "slowly_ending.py").write_text(ending)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(nurseries, "IMPORTED", ("slowly_ending",))
    nursery = Nursery()
    assert Born(nursery, 1, io.BytesIO()).wait() == -signal.SIGKILL
    nursery.close()
