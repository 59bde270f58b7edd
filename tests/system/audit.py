"""Asks the Python advisory database about every version of requirements.lock, with pip-audit.

python tests/system/audit.py PIP_AUDIT

Ends with 0 where nothing is known of any, 1 where something is, and 2 where some could not be asked
about: pip-audit by itself ends with 0 then, as if all were well.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parents[2] / "requirements.lock"
CLEAN, VULNERABLE, UNKNOWN = range(3)


def audit(command: Sequence[str]) -> tuple[int, str]:
    """The exit code, and what to say.

    Args:
        command: Starts pip-audit.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
        done = subprocess.run(
            [*command, "-r", str(LOCK), *options, "-o", str(answer)],
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            found = json.loads(answer.read_text())["dependencies"]
        except (OSError, ValueError, KeyError):
            said = (done.stderr.strip() or "it said nothing").splitlines()[-1]
            return UNKNOWN, f"nothing is known: pip-audit did not reach its database ({said})"
    return judged(found)


def judged(found: Sequence[dict[str, Any]]) -> tuple[int, str]:
    """The exit code of what pip-audit says of dependencies, and what to say of it."""
    lines = [
        f"{entry['name']} {entry['version']}: {problem['id']}, fixed in "
        f"{', '.join(problem['fix_versions']) or 'no version yet'}"
        for entry in found
        for problem in entry.get("vulns", ())
    ]
    skipped = [entry for entry in found if "skip_reason" in entry]
    if skipped:
        lines.append(
            f"nothing is known of {len(skipped)} of {len(found)} dependencies, the first: "
            f"{skipped[0]['skip_reason']}"
        )
    if not found:
        lines.append("nothing is known: pip-audit was asked about no dependency")
    if not lines:
        lines.append(f"no vulnerability is known of {len(found)} dependencies")
        return CLEAN, lines[0]
    vulnerable = any(entry.get("vulns") for entry in found)
    return VULNERABLE if vulnerable else UNKNOWN, "\n".join(lines)


def main() -> int:
    """Audit and say what was found."""
    code, text = audit(sys.argv[1:])
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
