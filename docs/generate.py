"""Writes the reference pages that are generated: docs/config.md, docs/metrics.md, docs/protos.md.

python docs/generate.py           write them
python docs/generate.py --check   fail where one on disk differs from what would be written
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from generators import config, metrics, protos

DOCS = Path(__file__).parent
PAGES: dict[str, Callable[[], str]] = {
    "config.md": config.page,
    "metrics.md": metrics.page,
    "protos.md": protos.page,
}


def main(arguments: list[str]) -> int:
    """Write or check every page and return the exit code."""
    check = arguments == ["--check"]
    if arguments and not check:
        print(__doc__, file=sys.stderr)
        return 2
    stale = []
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            stale.append(name)
        elif not check:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"stale: {', '.join(stale)}; run: make docs", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
