"""A container: a process of its own, alone with its address, its volumes and a read-only root.

bubblewrap makes it. What an image of this project holds stands in it at other places: the
environment of these tests and this repository's code. The rest is what the Dockerfile and the
manifest say.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from tests.support.processes import wait_until
from tests.system.cluster.network import inside
from tests.system.kubernetes.rendered import ROOT, Pod

SYSTEM = ("/bin", "/sbin", "/lib", "/lib64")
USER = "10001"
GRPC = "cygrpc"
FOLDERS = ("/models", "/runs", "/task")
"""What every image has."""


class Container:
    """The one container of a pod.

    Args:
        pod: Whose it is.
        namespace: Its network.
        volumes: What is mounted, by the folder where; and single files of /etc.
        log_file: What it says is added here.
    """

    def __init__(
        self, pod: Pod, namespace: str, volumes: Mapping[str, Path], log_file: Path
    ) -> None:
        command = [
            *inside(namespace),
            "bwrap",
            *_root(),
            *_mounts(pod, volumes),
            *_process(pod),
            "--",
            str(Path(sys.executable).parent / "antiphon"),
            *pod.arguments(),
        ]
        with log_file.open("a") as log:
            self._popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def exit_code(self) -> int | None:
        """What it ended with, 128 and the signal where one ended it; None while it runs."""
        return self._popen.poll()

    @property
    def imports(self) -> bool:
        """Whether its process is at importing what it needs."""
        return any(GRPC in mapped.path for p in self._processes() for mapped in _maps(p))

    def send(self, number: signal.Signals) -> None:
        """Send its process, which is the first in its namespace, a signal."""
        for child in self._processes():
            with suppress(psutil.NoSuchProcess):
                child.send_signal(number)

    def end(self, grace: float) -> float:
        """SIGTERM, and SIGKILL after `grace` seconds; returns how long its end took."""
        since = time.monotonic()
        self.send(signal.SIGTERM)
        try:
            self._popen.wait(grace)
        except subprocess.TimeoutExpired:
            wait_until(self._killed, timeout=10, what="a container that was killed has ended")
        return time.monotonic() - since

    def _killed(self) -> bool:
        """Whether it has ended; bubblewrap may still be about to start its process."""
        self.send(signal.SIGKILL)
        return self.exit_code is not None

    def _processes(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._popen.pid).children()
        except psutil.NoSuchProcess:
            return []


def _maps(process: psutil.Process) -> Sequence[Any]:
    try:
        return process.memory_maps()
    except psutil.Error:
        return []


def image_environ() -> dict[str, str]:
    """The variables of every image, as the Dockerfile's stage `runtime` says them."""
    text = (ROOT / "Dockerfile").read_text()
    (stage,) = re.findall(r"^FROM \S+ AS runtime\n(.*?)^FROM", text, re.DOTALL | re.MULTILINE)
    (lines,) = re.findall(r"^ENV (.*?[^\\])$", stage, re.DOTALL | re.MULTILINE)
    environ = dict(pair.split("=", 1) for pair in lines.replace("\\\n", " ").split())
    return environ | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}


def _root() -> list[str]:
    """A root of what an image holds."""
    made = ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for folder in filter(lambda path: Path(path).exists(), SYSTEM):
        path = Path(folder)
        made += ["--symlink", str(path.readlink()), folder] if path.is_symlink() else []
        made += [] if path.is_symlink() else ["--ro-bind", folder, folder]
    for file in ("/etc/ld.so.cache", "/etc/ssl", "/etc/alternatives"):
        made += ["--ro-bind-try", file, file]
    return made + [part for folder in FOLDERS for part in ("--dir", folder)]


def _mounts(pod: Pod, volumes: Mapping[str, Path]) -> list[str]:
    """The volumes, then what may lie below one of them, then nothing more can be written."""
    read_only = {
        mount["mountPath"]: mount.get("readOnly", False) for mount in pod.container["volumeMounts"]
    }
    made = []
    for place in sorted(volumes):
        bind = "--ro-bind" if read_only.get(place, True) else "--bind"
        made += [bind, str(volumes[place]), place]
    for folder in dict.fromkeys((str(ROOT), sys.prefix, sys.base_prefix)):
        made += ["--ro-bind", folder, folder]
    return [*made, "--remount-ro", "/"]


def _process(pod: Pod) -> list[str]:
    made = ["--unshare-user", "--uid", USER, "--gid", USER, "--cap-drop", "ALL"]
    made += ["--unshare-pid", "--as-pid-1", "--unshare-ipc", "--unshare-uts"]
    made += ["--hostname", pod.name, "--die-with-parent", "--new-session", "--clearenv"]
    for name, value in (image_environ() | pod.environ()).items():
        made += ["--setenv", name, value]
    return [*made, "--chdir", pod.container.get("workingDir", "/task")]


def tail(files: Sequence[Path], lines: int = 12) -> str:
    """The ends of logs, each below its name."""
    told = []
    for file in files:
        end = file.read_text(errors="replace").splitlines()[-lines:]
        told.append("\n".join([f"--- {file.stem}", *end]))
    return "\n".join(told)
