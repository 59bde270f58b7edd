"""The base install is what a caller needs, and no more."""

import pkgutil
import subprocess
import sys

import antiphon.clients

MODULES = sorted(
    info.name for info in pkgutil.walk_packages(antiphon.clients.__path__, "antiphon.clients.")
)


def test_the_clients_import_no_torch_and_no_service() -> None:
    assert "antiphon.clients.generation" in MODULES
    code = (
        f"import importlib, sys; [importlib.import_module(name) for name in {MODULES!r}]\n"
        "forbidden = ('torch', 'transformers', 'numpy', 'antiphon.services', 'antiphon.learner')\n"
        "found = [name for name in forbidden if name in sys.modules]\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
