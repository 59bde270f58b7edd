"""Whether this process is one of several. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping


def in_job(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun started this process as one of several."""
    return "RANK" in environ and int(environ.get("WORLD_SIZE", "1")) > 1
