"""Several processes as torchrun starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.processes import QUIET


def torchrun(
    number: int,
    module: str,
    arguments: Sequence[str],
    *,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    timeout: float = 250,
) -> tuple[int, str]:
    """Run a module in so many ranks on this machine to its end; exit code and all output."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(number)),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
            *("-m", module, *arguments),
        ],
        cwd=cwd or root,
        env={**os.environ, **QUIET, "PYTHONPATH": f"{cwd or root}:{root}", **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    return done.returncode, done.stdout
