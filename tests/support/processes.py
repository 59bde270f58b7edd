"""`antiphon` commands as processes of their own: addresses, logs, and an end in every case."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

MARK = "TESTS_PROCESS_MARK"
"""Environment variable by which the descendants of a test are found, orphans too."""

QUIET = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "COLUMNS": "160",
}
POLL_SECONDS = 0.02


def wait_until(
    condition: Callable[[], bool], *, timeout: float, what: str, every: float = POLL_SECONDS
) -> None:
    """Returns once `condition()` holds; AssertionError naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}")
        time.sleep(every)


def command(*arguments: str) -> list[str]:
    """`antiphon …` as installed beside this interpreter."""
    return [str(Path(sys.executable).parent / "antiphon"), *arguments]


def run(
    arguments: Sequence[str],
    *,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> str:
    """Runs a program to its end and returns its output; AssertionError unless it ends with 0."""
    done = subprocess.run(
        list(arguments),
        cwd=cwd,
        env={**os.environ, **QUIET, **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{arguments[:4]} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@dataclass
class Started:
    """One process started by `Processes`."""

    name: str
    popen: subprocess.Popen[str]
    log_file: Path
    address_file: Path

    @property
    def log(self) -> str:
        """All that it has written to stdout and stderr."""
        return self.log_file.read_text(errors="replace")

    def description(self, *, timeout: float = 60) -> dict[str, Any]:
        """What the process wrote to its address file; waits for it, or for the process's end."""

        def written() -> bool:
            if self.address_file.exists():
                return True
            if self.popen.poll() is not None:
                raise AssertionError(
                    f"{self.name} ended with code {self.popen.returncode} before it served:\n"
                    f"{self.log}"
                )
            return False

        try:
            wait_until(written, timeout=timeout, what=f"{self.name} writes {self.address_file}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log}") from None
        return json.loads(self.address_file.read_text())  # type: ignore[no-any-return]

    def address(self, *, timeout: float = 60) -> str:
        """Where it serves gRPC."""
        return str(self.description(timeout=timeout)["address"])

    def wait(self, *, timeout: float) -> int:
        """Its exit code, once it has ended; AssertionError with its log after `timeout`."""
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end in {timeout:g} s:\n{self.log}") from None

    def succeed(self, *, timeout: float) -> str:
        """Waits for an end with code 0 and returns the log."""
        code = self.wait(timeout=timeout)
        assert code == 0, f"{self.name} ended with code {code}:\n{self.log}"
        return self.log

    def terminate(self, *, timeout: float = 20) -> int:
        """SIGTERM, then its exit code."""
        self.popen.send_signal(signal.SIGTERM)
        return self.wait(timeout=timeout)


class Processes:
    """Starts processes and sees to it that all of them, and their children, are gone at the end.

    Args:
        directory: Holds logs and address files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.started: list[Started] = []
        self._mark = uuid.uuid4().hex

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Started:
        """Starts a program (the whole command line); its output goes to `<name>.log`."""
        log_file = self.directory / f"{name}.log"
        with log_file.open("w") as log:
            popen = subprocess.Popen(
                list(arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=cwd or self.directory,
                env={**os.environ, **QUIET, MARK: self._mark, **(environ or {})},
                start_new_session=True,
            )
        started = Started(name, popen, log_file, self.directory / f"{name}.address.json")
        self.started.append(started)
        return started

    def antiphon(self, name: str, *arguments: str, **options: Any) -> Started:
        """Starts `antiphon` with these arguments."""
        return self.start(name, command(*arguments), **options)

    def serve(self, name: str, *arguments: str, **options: Any) -> Started:
        """Starts `antiphon serve …` on a free port of loopback, with an address file."""
        address_file = self.directory / f"{name}.address.json"
        ports = ("--port", "0", "--address-file", str(address_file))
        return self.antiphon(name, "serve", *arguments, *ports, **options)

    def alive(self) -> list[psutil.Process]:
        """All processes alive that descend from one started here, orphans included."""
        found = []
        for process in psutil.process_iter():
            try:
                marked = process.environ().get(MARK) == self._mark
                if marked and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def assert_none_left(self, *, timeout: float = 10) -> None:
        """Fails unless everything started here, children included, ends within `timeout`."""
        try:
            wait_until(lambda: not self.alive(), timeout=timeout, what="all processes have ended")
        except AssertionError as error:
            raise AssertionError(f"{error}; alive: {self.alive()}") from None

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for started in self.started:
            if started.popen.poll() is None:
                started.popen.send_signal(signal.SIGTERM)
        try:
            if kind is None:
                self.assert_none_left(timeout=20)
        finally:
            for process in self.alive():
                process.kill()
            for started in self.started:
                started.popen.wait(10)
