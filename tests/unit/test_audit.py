"""`make audit` says what it knows, and that it does not know."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.system.audit import audit

FINE = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "Dependency not found: b (2)"}
BAD = {
    "name": "c",
    "version": "3",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1"], "aliases": [], "description": ""}],
}


def auditor(folder: Path, answer: Any) -> list[str]:
    """A program that answers as pip-audit would; None for one that reaches nothing."""
    program = folder / "pip_audit.py"
    text = "import sys\nprint('warning', file=sys.stderr)\n"
    if answer is None:
        text += "print('ERROR: cannot connect', file=sys.stderr)\nsys.exit(1)\n"
    else:
        content = json.dumps({"dependencies": answer})
        text += f"open(sys.argv[sys.argv.index('-o') + 1], 'w').write({content!r})\n"
    program.write_text(text)
    return [sys.executable, str(program)]


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ([FINE, FINE], 0, "no vulnerability is known of 2 dependencies"),
        ([FINE, BAD], 1, "c 3: PYSEC-1, fixed in 3.1"),
        ([FINE, SKIPPED], 2, "nothing is known of 1 of 2 dependencies, the first: Dep"),
        ([BAD, SKIPPED], 1, "nothing is known of 1 of 2"),
        ([], 2, "no dependency"),
        (None, 2, "did not reach its database (ERROR: cannot connect)"),
    ],
)
def test_the_exit_code_tells_clean_vulnerable_and_unknown_apart(
    tmp_path: Path, answer: Any, code: int, said: str
) -> None:
    found, text = audit(auditor(tmp_path, answer))
    assert found == code
    assert said in text
