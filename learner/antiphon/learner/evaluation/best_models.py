"""The models of the best evaluation, kept in the run folder.

    best/                      the models, ready for `from_pretrained`
        agent_0/, agent_1/
        best.json              the metric, its value, and which evaluation it was

They are written to `.best.new`, flushed to disk, and renamed. What a kill leaves between the two
renames is put right when the run goes on.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from antiphon.learner.checkpoints.state_files import flush
from antiphon.learner.record.run_folder import damaged_value, json_object

ABOUT = "best.json"


class BestModels:
    """Keeps the models of the evaluation with the best value of a metric.

    Args:
        run_folder: Gets the folder `best`.
        metric: Name of the figure.
        mode: ``"max"`` or ``"min"``.
        save: Writes the models as they are now into a folder.

    Attributes:
        metric: Name of the figure.
        value: The best value so far, None before the first.
    """

    def __init__(
        self, run_folder: Path, *, metric: str, mode: str, save: Callable[[Path], None]
    ) -> None:
        self.metric = metric
        self.value: float | None = None
        self._mode = mode
        self._save = save
        self._folder = run_folder / "best"
        self._new, self._old = run_folder / ".best.new", run_folder / ".best.old"

    def better(self, value: float) -> bool:
        """Whether a value is better than the best so far; an equal one is not."""
        if not math.isfinite(value):
            return False
        if self.value is None:
            return True
        return value > self.value if self._mode == "max" else value < self.value

    def keep(self, value: float, about: Mapping[str, Any]) -> Path:
        """Keep the models as they are now instead of those kept before. Blocks.

        Args:
            value: Of the metric.
            about: What else `best.json` is to say.

        Returns:
            The folder; all of it is on disk.
        """
        shutil.rmtree(self._new, ignore_errors=True)
        self._save(self._new)
        written = {"metric": self.metric, "mode": self._mode, "value": value, **about}
        text = json.dumps(written, indent=2, ensure_ascii=False) + "\n"
        (self._new / ABOUT).write_text(text, encoding="utf-8")
        for path in sorted(self._new.rglob("*"), reverse=True):
            flush(path)
        flush(self._new)
        self._swap()
        self.value = value
        return self._folder

    def state_dict(self) -> dict[str, Any]:
        """The best value, and what it is the best of."""
        return {"metric": self.metric, "mode": self._mode, "value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave; another metric or mode begins anew.

        What the folder holds counts where it is better: an earlier process of this run made it
        after the checkpoint, and it is not lost.

        Raises:
            FieldError: What the folder says of itself is damaged.
        """
        kept = [state]
        if self._recovered():
            kept.append(self._kept())
        for one in kept:
            same = (one["metric"], one["mode"]) == (self.metric, self._mode)
            if same and one["value"] is not None and self.better(one["value"]):
                self.value = one["value"]

    def _kept(self) -> dict[str, Any]:
        """What `best.json` says."""
        file = self._folder / ABOUT
        about = json_object(file.read_bytes(), str(file))
        for name in ("metric", "mode"):
            if not isinstance(about.get(name), str):
                raise damaged_value(file, name, about.get(name))
        if type(about.get("value")) not in (int, float):
            raise damaged_value(file, "value", about.get("value"))
        return about

    def _swap(self) -> None:
        shutil.rmtree(self._old, ignore_errors=True)
        if self._folder.exists():
            self._folder.rename(self._old)
        self._new.rename(self._folder)
        flush(self._folder.parent)
        shutil.rmtree(self._old, ignore_errors=True)

    def _recovered(self) -> bool:
        """Whether there are models of an earlier process, once a swap cut short is finished."""
        if not self._folder.exists() and self._old.exists():
            self._swap()
        return (self._folder / ABOUT).is_file()
