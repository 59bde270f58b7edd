"""CoMLRL in an environment of its own, so that benchmarks can run it; never a dependency."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = "1.4.3"
BASELINE = f"CoMLRL {VERSION}"
ENVIRONMENT = ROOT / ".venv-comlrl"
_DONE = ENVIRONMENT / f".comlrl-{VERSION}"


def peer_python() -> Path:
    """The environment's Python; the first time it is made, which takes a minute."""
    python = ENVIRONMENT / "bin" / "python"
    if not _DONE.exists():
        sys.stderr.write(f"Installing {BASELINE} into {ENVIRONMENT.name} (once) ...\n")
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
        # torch first and pinned, as in the Makefile; the rest in the versions of our lock file.
        lock = str(ROOT / "requirements.lock")
        for packages in (["torch==2.13.0"], [f"comlrl=={VERSION}", "safetensors", "-c", lock]):
            subprocess.run([python, "-m", "pip", "install", "-qq", *packages], check=True)
        _DONE.touch()
    return python


def run_peer(module: str, *arguments: str, threads: int = 1) -> None:
    """Run a module of this repository with CoMLRL importable.

    Args:
        module: Its dotted name, for example ``benchmarks.parity_parts.comlrl_main``.
        arguments: What it is given.
        threads: Threads that torch may use.

    Raises:
        subprocess.CalledProcessError: It failed; what it said is on stderr.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "TQDM_DISABLE": "1",
    }
    command = [str(peer_python()), "-m", module, *arguments]
    subprocess.run(command, check=True, cwd=ROOT, env=environment)


if __name__ == "__main__":
    print(peer_python())
