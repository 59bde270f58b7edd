"""Builds the images for real: with buildah, on a base of Debian packages, not python:slim."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "images"
BASE = "localhost/antiphon/base:test"
TARGETS = ("services", "generation", "learner")
MOUNTS = """
set -e
mount --bind "$ROOT" "$ROOT"
mount -o remount,ro,bind "$ROOT"
for folder in tmp models runs; do mount -t tmpfs -o mode=1777 tmpfs "$ROOT/$folder"; done
mount --bind "$TASK" "$ROOT/task"
mount -t proc proc "$ROOT/proc"
mount --bind /dev "$ROOT/dev"
cd "$ROOT/task"
exec chroot --userspec=10001:10001 "$ROOT" /usr/bin/env -i -C /task PATH="$IMAGE_PATH" "$@"
"""
"""What a container engine does: a read-only root, volumes, a user without rights."""


@dataclass(frozen=True)
class Image:
    """A built image, mounted at `root`."""

    name: str
    root: Path
    settings: dict[str, Any]

    @property
    def bytes(self) -> int:
        """Size of all that it holds."""
        return int(
            _output("du", "--summarize", "--bytes", "--one-file-system", self.root).split()[0]
        )

    def command(self, task: Path, *arguments: str, entry: str = "antiphon") -> list[str]:
        """A command line that runs a program in it, with `task` as /task."""
        task.chmod(0o755)
        environ = dict(text.split("=", 1) for text in self.settings["Env"])
        path = environ.pop("PATH")
        variables = [f"{name}={value}" for name, value in environ.items()]
        return [
            *("env", f"ROOT={self.root}", f"TASK={task}", f"IMAGE_PATH={path}"),
            *("unshare", "--mount", "--", "bash", "-c", MOUNTS, "image"),
            *(*variables, entry, *arguments),
        ]


def buildah(*arguments: str | Path) -> str:
    """Runs buildah; the error shows what it printed."""
    return _output("buildah", *arguments)


def _output(*arguments: str | Path) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments} ended with {done.returncode}:\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def base() -> str:
    """Python on Debian; it trusts whom this machine trusts."""
    archive = CACHE / "base.tar"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        part = CACHE / "part.tar"
        _output(
            *("mmdebstrap", "--quiet", "--variant=minbase"),
            "--include=python3,python3-venv,ca-certificates",
            "--customize-hook=copy-in /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs",
            *("bookworm", part),
        )
        part.rename(archive)
    (CACHE / "Dockerfile").write_text('FROM scratch\nADD base.tar /\nCMD ["bash"]\n')
    buildah("bud", "--quiet", "--layers", "--isolation", "chroot", "-t", BASE, CACHE)
    return BASE


@pytest.fixture(scope="session")
def pip_options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """pip inside finds packages where pip outside does."""
    settings = dict[str, str]()
    for line in _output(ROOT / ".venv" / "bin" / "pip", "config", "list").splitlines():
        name, _, value = line.partition("=")
        settings[name.removeprefix(":env:").removeprefix("global").strip(".")] = value.strip("'")
    wanted = ("index-url", "find-links", "proxy", "cert")
    file = tmp_path_factory.mktemp("pip") / "pip.conf"
    kept = {name: value for name, value in settings.items() if name in wanted}
    file.write_text("[global]\n" + "".join(f"{k} = {v}\n" for k, v in kept.items()))
    options = [f"--secret=id=pip,src={file}"]
    # Where pip is given a folder of wheels, torch is in it; elsewhere it comes from its own index.
    if "find-links" in kept:
        options += ["--build-arg=TORCH_FROM=", "--volume={0}:{0}:ro".format(kept["find-links"])]
    return options


@pytest.fixture(scope="session")
def image(base: str, pip_options: list[str]) -> Iterator[Callable[[str], Image]]:
    """`image("learner")`: that image, built when first asked for."""
    made: dict[str, Image] = {}
    containers: list[str] = []

    def build(target: str) -> Image:
        if target not in made:
            name = f"localhost/antiphon/{target}:test"
            buildah(
                *("bud", "--quiet", "--layers", "--isolation", "chroot", "--target", target),
                *(*pip_options, f"--build-arg=BASE={base}", "-t", name, ROOT),
            )
            containers.append(buildah("from", name).strip())
            described = json.loads(buildah("inspect", "--type", "image", name))
            root = Path(buildah("mount", containers[-1]).strip())
            made[target] = Image(name, root, described["OCIv1"]["config"])
        return made[target]

    try:
        yield build
    finally:
        for container in containers:
            buildah("rm", container)


@pytest.fixture(scope="session", autouse=True)
def _programs() -> None:
    missing = [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]
    assert not missing, f"install {', '.join(missing)}, as make test-images does"
    assert os.geteuid() == 0, "images are built as root here"
