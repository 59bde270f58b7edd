"""How a server says which version it is and what time it has."""

from __future__ import annotations

from functools import cache
from importlib import metadata

VERSION_KEY, TIME_KEY = "antiphon-version", "antiphon-time"
"""Initial metadata of every answer of antiphon's own servers: its version, and seconds since 1970
by its clock."""


@cache
def version() -> str:
    """The installed version of antiphon."""
    return metadata.version("antiphon")
