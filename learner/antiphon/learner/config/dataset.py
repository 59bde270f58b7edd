"""`[dataset]`: where the tasks come from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class DatasetSettings(BaseModel):
    """`[dataset]`: where the tasks come from; exactly one of path, name and prompts."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    path: Path | tuple[Path, ...] | None = None
    """File of rows: `.json` (a list), `.jsonl`, `.csv` (all values text) or `.parquet`; a folder,
    whose files of these kinds are taken in order of their paths; or a list of files and folders.
    Also a folder that `save_to_disk` wrote."""
    name: str | None = None
    """Dataset of the hub, or a folder, as `datasets.load_dataset` takes it."""
    config: str | None = None
    """Configuration of the dataset that `name` says."""
    split: str = "train"
    """Split of it."""
    revision: str | None = None
    """Revision of it on the hub; none is the newest."""
    prompts: tuple[str, ...] = ()
    """Prompts themselves, one task each."""
    columns: Mapping[str, str] = Field(default_factory=dict)
    """Renames columns: new name to name in the data, as ``{prompt = "question"}``. A new name must
    be no column's, unless that one is renamed too."""
    limit: int | None = Field(default=None, ge=1)
    """Use the first rows only."""
    streaming: bool = False
    """Read the rows as they are needed instead of all at the start. The number of rows is not known
    then."""
