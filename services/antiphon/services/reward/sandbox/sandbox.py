"""The sandbox as seen from outside: starts the process, waits, reads what it told."""

from __future__ import annotations

import json
import logging
import os
import selectors
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from antiphon.services.reward.sandbox.report import (
    MOST_BYTES,
    MOST_ERROR_CHARACTERS,
    MOST_VALUE_CHARACTERS,
    read_report,
)
from antiphon.services.reward.sandbox.tests import Outcome, outcome_of, read_tests

logger = logging.getLogger(__name__)

_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); import inside; inside.main()"
_PROGRAM = Path(__file__).parent
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
_DEVICES = ("/dev/null", "/dev/urandom")


class Protection(StrEnum):
    """What code in the sandbox cannot do, where the protection holds."""

    MEMORY = "memory"
    """Take more memory than it may."""
    PROCESSES = "processes"
    """Start processes or threads, or run programs."""
    NETWORK = "network"
    """Open any socket."""
    FILES = "files"
    """Read or write files outside its own, passing folder (Python's own can be read)."""
    DISK = "disk"
    """Write more than its folder may hold."""
    USER = "user"
    """Be root."""


class SandboxError(RuntimeError):
    """This machine cannot hold a protection that is required."""


@dataclass(frozen=True)
class Limits:
    """What code may use.

    Attributes:
        seconds: For loading the code, and for each test; a process that is still there when all
            of them are over is killed.
        total_seconds: For all of it; then the process is killed, and the tests that it has not
            come to have failed.
        cpu_seconds: Processor time of the whole.
        memory_bytes: Address space, Python's own 20 MB included.
        file_bytes: Largest file.
        folder_bytes: All files together; they are kept in memory.
    """

    seconds: float = 2.0
    total_seconds: float = 20.0
    cpu_seconds: int = 10
    memory_bytes: int = 512 << 20
    file_bytes: int = 1 << 20
    folder_bytes: int = 8 << 20


class Sandbox:
    """Runs code and its tests, each time in a fresh process.

    Of time, processor time, memory and file size the limits always hold. That the code can reach
    neither network nor files nor other processes needs a Linux with Landlock (5.13) or seccomp on
    x86-64 or ARM; each is tried once, before anything is run, and a sandbox that cannot hold what
    is required refuses to work.

    Args:
        limits: What code may use.
        require: Protections without which nothing is run.
        site_packages: Whether code may import the packages of this environment, read only.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        require: Collection[Protection] = frozenset(Protection),
        site_packages: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self._require = frozenset(Protection(one) for one in require)
        self._site_packages = site_packages

    @cached_property
    def protections(self) -> frozenset[Protection]:
        """The protections that hold here, found by trying to do what they forbid."""
        told, ending = self._in_fresh_process({"probe": True}, 10 * self.limits.seconds)
        held = read_report(told, 0).held
        if held is None:
            raise SandboxError(f"the sandbox does not start: {ending or 'no answer'}")
        return frozenset(Protection(name) for name in held)

    def check(self) -> None:
        """Refuse to work where a protection that is required does not hold.

        Raises:
            SandboxError: Naming those that are missing.
        """
        if missing := sorted(self._require - self.protections):
            raise SandboxError(
                f"sandbox: this machine does not hold {', '.join(missing)}; run where the kernel "
                "has Landlock and seccomp, or leave them out of `require` for code that you trust"
            )

    def run(self, code: str, tests: Sequence[str]) -> Outcome:
        """Run code, then its tests (`read_tests` says how they are written).

        Raises:
            FieldError: A test is no assert statement.
            SandboxError: A protection that is required does not hold here.
        """
        asked = read_tests(tests)
        self.check()
        job = {
            "code": code,
            "expressions": [test.expression for test in asked],
            "seconds": self.limits.seconds,
            "most_value_characters": MOST_VALUE_CHARACTERS + 1,
            "most_error_characters": MOST_ERROR_CHARACTERS,
        }
        seconds = min(self.limits.seconds * (len(asked) + 2), self.limits.total_seconds)
        told, ending = self._in_fresh_process(job, seconds)
        return outcome_of(asked, read_report(told, len(asked)), ending)

    def _in_fresh_process(self, job: Mapping[str, Any], seconds: float) -> tuple[bytes, str]:
        """Run a job; what it told, and what ended it early ("" for nothing)."""
        report, write = os.pipe()
        folder = Path(tempfile.mkdtemp(prefix="antiphon-sandbox-"))
        try:
            if os.geteuid() == 0:
                folder.chmod(0o777)  # it may have to become nobody
            whole = {
                **job,
                "folder": str(folder),
                "readable": self._readable(),
                "report": write,
                "limits": {
                    "memory_bytes": self.limits.memory_bytes,
                    "cpu_seconds": self.limits.cpu_seconds,
                    "file_bytes": self.limits.file_bytes,
                    "folder_bytes": self.limits.folder_bytes,
                },
            }
            process = subprocess.Popen(  # noqa: S603 - this Python, on our own program
                [sys.executable, *self._flags(), "-c", _BOOT, str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(write,),
                env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
            os.close(write)
            write = -1
            with process:
                try:
                    _hand_over(process, json.dumps(whole).encode())
                    told, overdue = _read_all(report, time.monotonic() + seconds)
                finally:
                    process.kill()
            return told, _ending(process.returncode, overdue, seconds)
        finally:
            os.close(report)
            if write >= 0:
                os.close(write)
            _remove(folder)

    def _flags(self) -> list[str]:
        return ["-I", "-B"] if self._site_packages else ["-I", "-B", "-S"]

    def _readable(self) -> list[str]:
        paths = sysconfig.get_paths()
        own = [paths["stdlib"], paths["platstdlib"], str(_PROGRAM), sys.base_prefix + "/lib"]
        packages = [paths["purelib"], paths["platlib"]] if self._site_packages else []
        return [*_SYSTEM, *_DEVICES, *own, *packages]


def _remove(folder: Path) -> None:
    """Remove the folder; where it was in memory it is empty, else however deep it has become."""
    try:
        folder.rmdir()
    except OSError:
        subprocess.run(["rm", "-rf", "--", folder], check=False)  # noqa: S603, S607
    if folder.exists():
        logger.warning("sandbox: %s cannot be removed", folder)


def _hand_over(process: subprocess.Popen[bytes], job: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(job)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended already; its exit status says why
    finally:
        process.stdin = None


def _read_all(descriptor: int, deadline: float) -> tuple[bytes, bool]:
    """Read to the end, the deadline, or more than is wanted; and whether time was up."""
    told = b""
    with selectors.DefaultSelector() as selector:  # select() does not take descriptors from 1024
        selector.register(descriptor, selectors.EVENT_READ)
        while len(told) < MOST_BYTES:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return told, True
            part = os.read(descriptor, 1 << 16)
            if not part:
                break
            told += part
    return told, False


def _ending(status: int, overdue: bool, seconds: float) -> str:
    if overdue:
        return f"took longer than {seconds:g} s and was killed"
    if status == 0:
        return ""
    return f"ended with signal {-status}" if status < 0 else f"ended with exit status {status}"
