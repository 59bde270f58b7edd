"""Child processes of a local run: started, waited for, and gone at the end whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.learner.run.nursery import Born, Nursery, NurseryError

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.02
LOG_LINES = 25
"""Last lines of a child's log that its error shows."""


class ChildError(RuntimeError):
    """A child process did not come up, or ended before the run did."""


@dataclass
class Child:
    """One `antiphon` process that ends when this one does.

    Attributes:
        name: What errors call it, for example "generation service of agent 0".
        process: The process.
        log_file: Where its output goes.
        address_file: Where it writes its address once it serves.
    """

    name: str
    process: subprocess.Popen[bytes] | Born
    log_file: Path
    address_file: Path

    @classmethod
    def start(
        cls,
        name: str,
        arguments: Sequence[str],
        *,
        log_file: Path,
        address_file: Path,
        environ: Mapping[str, str],
        nursery: Nursery | None = None,
    ) -> Child:
        """Start `antiphon` with these arguments, to which address file and parent are added.

        In a nursery, where there is one that can; else as a process that imports everything itself.

        It has a process group of its own, so a terminal's Ctrl-C reaches this process only, and a
        pipe as its standard input, whose end tells it that this process is gone.
        """
        log_file.parent.mkdir(parents=True, exist_ok=True)
        address_file.unlink(missing_ok=True)
        arguments = [*arguments, "--address-file", str(address_file), "--exit-with-parent"]
        with log_file.open("ab") as log:
            if nursery is not None:
                try:
                    born = nursery.start(arguments, output=log, environ=environ)
                    return cls(name, born, log_file, address_file)
                except NurseryError as error:
                    if not nursery.told_gone:
                        nursery.told_gone = True
                        logger.warning("services start more slowly, as on their own: %s", error)
            main = "from antiphon.clients.cli import main; main()"
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-c", main, *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environ},
                process_group=0,
            )
        return cls(name, process, log_file, address_file)

    async def address(self, *, within: float) -> str:
        """Where it serves, once it does.

        Raises:
            ChildError: It ended before, or does not serve `within` seconds.
        """
        deadline = time.monotonic() + within
        while (address := self._written_address()) is None:
            if self.process.poll() is not None:
                raise ChildError(
                    f"the {self.name} ended with code {self.process.returncode} before it served; "
                    f"its log {self.log_file} ends with:\n{self.log_end()}"
                )
            if time.monotonic() > deadline:
                raise ChildError(
                    f"the {self.name} did not serve within {within:g} s (start_timeout); its log "
                    f"{self.log_file} ends with:\n{self.log_end()}"
                )
            await asyncio.sleep(POLL_SECONDS)
        return address

    def _written_address(self) -> str | None:
        """The address in the file, if it is this child's: that of a killed run may outlive it."""
        if not self.address_file.exists():
            return None
        written = json.loads(self.address_file.read_text())
        return str(written["address"]) if written["pid"] == self.process.pid else None

    def log_end(self) -> str:
        """The last lines of its log."""
        lines = self.log_file.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:]) or "(nothing)"

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        while (code := self.process.poll()) is None:  # noqa: ASYNC110 - Popen has no event to wait for
            await asyncio.sleep(POLL_SECONDS * 5)
        return code

    def kill(self) -> None:
        """End it at once; does not wait."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)


def stop_children(children: Sequence[Child], *, grace: float) -> None:
    """End all children in order, side by side: SIGTERM, after `grace` seconds SIGKILL. Blocks."""
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
        if child.process.stdin is not None:
            with contextlib.suppress(OSError):
                child.process.stdin.close()
    deadline = time.monotonic() + grace
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.0, deadline - time.monotonic()))
    for child in children:
        child.kill()
        child.process.wait()
