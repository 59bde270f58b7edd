"""The program of the fresh process: confines itself, then runs the code and its tests.

Reads one JSON job from standard input and writes one JSON line per event to the descriptor that
the job names. The first says whether the code is Python, before any of it runs: ``{"compiled":
true}`` or ``{"syntax": [line, column, message]}``, which is the last one too. Then come
``{"error": ...}`` where the code does not load, and per test ``{"test": number, "value": ...}`` or
with ``"error"``. The value is the `repr` of what the test's expression came to: what it should be
is not known here.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import confinement  # type: ignore[import-not-found]  # beside it, and nothing else is there


def main() -> None:
    """Run the job on standard input."""
    job = json.loads(sys.stdin.buffer.read())
    confinement.confine(folder=job["folder"], readable=job["readable"], **job["limits"])
    if job.get("probe"):
        _tell(job, {"held": _probe(job)})
        return
    _run(job)


def _run(job: dict[str, Any]) -> None:
    try:
        program = compile(job["code"], "answer.py", "exec", dont_inherit=True)
    except Exception as error:  # noqa: BLE001 - MemoryError, for example, of deep nesting
        _tell(job, {"syntax": _place(error, job)})
        return
    _tell(job, {"compiled": True})
    names: dict[str, Any] = {"__name__": "answer"}
    try:
        with _Deadline(job["seconds"]):
            exec(program, names)  # noqa: S102 - what this is for
    except BaseException as error:  # noqa: BLE001 - whatever the code raises is its outcome
        _tell(job, {"error": _shown(error, job)})
        return
    for number, expression in enumerate(job["expressions"]):
        try:
            with _Deadline(job["seconds"]):
                value = repr(eval(expression, names))  # noqa: S307 - what this is for
            _tell(job, {"test": number, "value": value[: job["most_value_characters"]]})
        except BaseException as error:  # noqa: BLE001
            _tell(job, {"test": number, "error": _shown(error, job)})


class _Deadline:
    """Raises TimeoutError in the code after so many seconds; whoever runs it kills it later."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._expired)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _expired(self, *_: object) -> None:
        raise TimeoutError(f"took longer than {self._seconds:g} s")


def _place(error: Exception, job: dict[str, Any]) -> list[Any]:
    if isinstance(error, SyntaxError):
        return [error.lineno or 0, error.offset or 0, error.msg]
    return [0, 0, f"Python cannot compile it ({_shown(error, job)})"]


def _shown(error: BaseException, job: dict[str, Any]) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - an exception of the code's own making
        text = ""
    name = type(error).__name__
    return f"{name}: {text}"[: job["most_error_characters"]] if text else name


def _tell(job: dict[str, Any], event: dict[str, Any]) -> None:
    os.write(job["report"], json.dumps(event).encode() + b"\n")


def _probe(job: dict[str, Any]) -> list[str]:
    """Try what must not work; the names of the protections that held."""
    import socket

    def connects() -> None:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()

    def forks() -> None:
        if os.fork() == 0:
            os._exit(0)

    def reads() -> None:
        os.listdir("/")  # noqa: PTH208

    def writes() -> None:
        descriptor = os.open("/var/tmp", os.O_TMPFILE | os.O_WRONLY)  # noqa: S108
        os.close(descriptor)

    def takes_memory() -> None:
        bytearray(2 * job["limits"]["memory_bytes"])

    def fills_the_disk() -> None:
        for number in range(2 * job["limits"]["folder_bytes"] // job["limits"]["file_bytes"] + 2):
            with open(f"filling-{number}", "wb") as file:  # noqa: PTH123
                file.write(bytes(job["limits"]["file_bytes"]))

    def signals() -> None:
        os.kill(os.getppid(), 0)

    def changes_modes() -> None:
        os.chmod(".", 0o700)  # noqa: PTH101

    def is_root() -> None:
        if os.geteuid() != 0:
            raise PermissionError

    attempts = {
        "network": [connects],
        "processes": [forks, signals],
        "files": [reads, writes, changes_modes],
        "disk": [fills_the_disk],
        "memory": [takes_memory],
        "user": [is_root],
    }
    return [name for name, tries in attempts.items() if all(_refused(one) for one in tries)]


def _refused(attempt: Any) -> bool:
    try:
        attempt()
    except (OSError, MemoryError):
        return True
    return False
