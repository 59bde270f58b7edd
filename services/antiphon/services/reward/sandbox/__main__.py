"""``python -m antiphon.services.reward.sandbox``: which protections hold on this machine."""

from __future__ import annotations

import sys

from antiphon.services.reward.sandbox.sandbox import Protection, Sandbox


def main() -> int:
    """Print a line per protection; 1 where one does not hold."""
    held = Sandbox().protections
    for protection in Protection:
        sys.stdout.write(f"{protection:<10} {'holds' if protection in held else 'DOES NOT HOLD'}\n")
    return int(held != frozenset(Protection))


if __name__ == "__main__":
    sys.exit(main())
