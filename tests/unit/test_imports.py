"""Who may import whom: the contracts of pyproject.toml."""

import sys
from pathlib import Path

import pytest
from tests.support.processes import run

ROOT = Path(__file__).parents[2]
TORCH_FREE = [
    "antiphon.clients.cli",
    "antiphon.services.common.server",
    "antiphon.services.reward",
    "antiphon.services.transition",
]


def test_portions_import_only_what_they_may() -> None:
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    run([sys.executable, "-c", lint, "--no-cache"], cwd=ROOT)


@pytest.mark.parametrize("module", TORCH_FREE)
def test_the_base_install_needs_no_torch(module: str) -> None:
    code = (
        f"import sys, importlib; importlib.import_module({module!r});"
        "heavy = {'torch', 'transformers', 'datasets', 'numpy'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    run([sys.executable, "-c", code], cwd=ROOT)
