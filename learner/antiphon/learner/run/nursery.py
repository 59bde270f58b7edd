"""The nursery of a local run: a process that has imported what generation services need.

Importing torch and transformers takes each service several seconds of a core. The nursery does that
once, and every service is a fork of it (`antiphon.services.common.nursery`), which shares the
memory of what was imported. `warm_up` starts it ahead of time, so that it imports while the script
does. Where a GPU is in use, services are processes of their own: CUDA does not survive a fork.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import IO

IMPORTED = (
    "antiphon.services.generation.cli",
    "antiphon.services.generation.serving",
    "transformers.modeling_utils",
)
START_SECONDS = 120.0
"""Seconds in which the nursery must have imported; then services are started without it."""
HEAR_SECONDS = 0.2
"""Longest wait for the nursery's words at a time: another thread may hear those for this one."""
_SAID_BYTES = 2000

_warm: list[Nursery] = []


def child_environment(threads: int) -> dict[str, str]:
    """Environment of a generation service that shares this machine's cores with others.

    Threads that wait must not spin: two spinning processes on two cores take ten times as long.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }


class NurseryError(RuntimeError):
    """The nursery is gone, or does not answer."""


class Born:
    """A process that the nursery forked, with what `subprocess.Popen` offers of one.

    Attributes:
        pid: Its process id.
        stdin: Its standard input.
        returncode: How it ended; None while it runs.
    """

    def __init__(self, nursery: Nursery, pid: int, stdin: IO[bytes]) -> None:
        self._nursery = nursery
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended.

        Raises:
            subprocess.TimeoutExpired: It runs on after `timeout` seconds.
        """
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("antiphon", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.exit_code(self.pid, timeout)
        return self.returncode


class Nursery:
    """Starts importing at once.

    Attributes:
        told_gone: Whether somebody has been told that it cannot start services.
    """

    def __init__(self) -> None:
        self.told_gone = False
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - of this object's life
        self._socket, theirs = socket.socketpair()
        command = "from antiphon.services.common.nursery import main; main()"
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-c", command, *IMPORTED],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env={**os.environ, **child_environment(threads=1)},
                process_group=0,
            )
        self._pids: list[int] = []
        self._codes: dict[int, int] = {}
        self._unread = b""
        self._silent = False
        self._hearing = threading.Lock()

    def start(
        self, arguments: Sequence[str], *, output: IO[bytes], environ: Mapping[str, str]
    ) -> Born:
        """Start `antiphon` with these arguments, in a process group of its own.

        Args:
            arguments: Of the command.
            output: Where its standard output and error go.
            environ: Added to this process's environment.

        Raises:
            NurseryError: The nursery is gone; what it could not import says why.
        """
        request = {
            "arguments": list(arguments),
            "environ": {**os.environ, **environ},
            "directory": os.getcwd(),  # noqa: PTH109
        }
        theirs, ours = os.pipe()
        stdin = os.fdopen(ours, "wb", buffering=0)
        try:
            data = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(self._socket, [data], [theirs, output.fileno()])
            self._socket.sendall(data[sent:])
        except OSError as error:
            stdin.close()
            self._silent = True
            raise NurseryError(self._gone()) from error
        finally:
            os.close(theirs)
        deadline = time.monotonic() + START_SECONDS
        while not self._pids:
            left = max(0.0, deadline - time.monotonic())
            self._hear(min(left, HEAR_SECONDS))
            if not self._pids and (self._silent or left == 0):
                stdin.close()
                raise NurseryError(self._gone())
        return Born(self, self._pids.pop(), stdin)

    def exit_code(self, pid: int, timeout: float | None) -> int | None:
        """How a child ended; None where it has not within `timeout` seconds.

        Without the nursery nobody knows: its children count as killed, and end as their standard
        input does.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while pid not in self._codes:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if self._hear(HEAR_SECONDS if left is None else min(left, HEAR_SECONDS)):
                continue
            if pid in self._codes or (not self._silent and left != 0):
                continue
            if not self._silent:
                return None
            try:
                self._process.wait(left)  # It has closed its socket, so it is about to end.
            except subprocess.TimeoutExpired:
                return None
            return -signal.SIGKILL
        return self._codes[pid]

    def _gone(self) -> str:
        """Why it starts nothing, with the end of what it wrote."""
        size = os.fstat(self._said.fileno()).st_size
        said = os.pread(self._said.fileno(), _SAID_BYTES, max(0, size - _SAID_BYTES))
        wrote = said.decode(errors="replace").strip() or "(nothing)"
        state = "is gone" if self._silent else f"does not answer within {START_SECONDS:g} s"
        return f"the nursery, which imports once for all services, {state}; it wrote:\n{wrote}"

    def close(self) -> None:
        """End it; its children are not touched. Safe to call again."""
        self._process.kill()  # first, so that a thread that still listens hears of it
        self._process.wait()
        self._socket.close()

    def _hear(self, timeout: float | None) -> bool:
        """Hear what it says, waiting for it so long; False where it says nothing or is gone."""
        try:
            if timeout != 0 and not wait([self._socket], timeout):
                return False
            with self._hearing:
                data = self._socket.recv(4096, socket.MSG_DONTWAIT)
                self._note(data)
        except BlockingIOError:
            return timeout != 0  # Another thread has heard what was there.
        except (OSError, ValueError):
            data = b""
        self._silent = not data
        return bool(data)

    def _note(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "code" in told:
                self._codes[told["pid"]] = told["code"]
            else:
                self._codes.pop(told["pid"], None)  # of an earlier process with this id
                self._pids.append(told["pid"])


def warm_up() -> None:
    """Begin to import, beside this script, what its generation services will need.

    Called first thing, before torch and transformers are imported, it saves the seconds in which
    the services would import them after the script has. What it starts ends with this process, or
    with the first run that uses it. ``antiphon train`` does it by itself.
    """
    if not _warm and sys.platform == "linux":
        nursery = Nursery()
        atexit.register(nursery.close)
        _warm.append(nursery)


def take_nursery() -> Nursery | None:
    """The nursery that `warm_up` has started, or one that starts now; None where none can be."""
    warm_up()
    nursery = _warm.pop() if _warm else None
    if nursery is not None and torch_uses_gpu():
        nursery.close()
        return None
    return nursery


def torch_uses_gpu() -> bool:
    """Whether services would run on a GPU."""
    import torch

    return torch.cuda.is_available()
