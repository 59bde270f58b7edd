"""A model of the manifests' name, as `hf download` would have left it in the cache."""

from __future__ import annotations

from pathlib import Path

from tests.support.models import tiny_folder


def cached(hub: Path, name: str) -> None:
    """Put a tiny random model into a Hugging Face cache, under the name of a real one.

    Args:
        hub: The cache's folder, `HF_HOME`.
        name: OWNER/MODEL.
    """
    repository = hub / "hub" / f"models--{name.replace('/', '--')}"
    commit = "0" * 40
    tiny_folder(repository / "snapshots" / commit, context=1024, spread=0.1)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
