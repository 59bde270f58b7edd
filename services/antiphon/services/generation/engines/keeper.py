"""Runs a program and ends it, with all that it started, once standard input ends.

A service holds the other end of that pipe, so the program ends with the service even where that is
killed. Run as a script, with the program's command line as arguments; imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE_SECONDS = 10.0


def _end(program: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the program's group, after a grace period SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(GRACE_SECONDS)


def _keep(program: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    _end(program)


def main(command: list[str]) -> int:
    """Runs the command and returns its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    program = subprocess.Popen(  # noqa: S603 - the command is the operator's
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_as_usual
    )
    threading.Thread(target=_keep, args=(program,), daemon=True).start()
    code = program.wait()
    _end(program)  # What it left behind goes too.
    return code if code >= 0 else 128 - code


def _as_usual() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
