"""A server whose event loop has the main thread, as a process of its own."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from tests.support.processes import Processes

SCRIPT = """
import asyncio, sys
from pathlib import Path
from antiphon.services.common.logs import configure_logging
from antiphon.services.common.server import Server, ServerSettings, run_until_stopped

async def main():
    settings = ServerSettings(address_file=Path(sys.argv[1]))
    server = Server(settings, name="plain", services=[], register=lambda _: None)
    return await run_until_stopped(server)

configure_logging()
sys.exit(asyncio.run(main()))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(
    processes: Processes, tmp_path: Path, number: signal.Signals
) -> None:
    arguments = [sys.executable, "-c", SCRIPT, str(tmp_path / "plain.address.json")]
    server = processes.start("plain", arguments)
    server.address()
    server.popen.send_signal(number)
    assert server.wait(timeout=20) == 0
    assert f"plain stops: {number.name}" in server.log
    assert "plain has stopped" in server.log
