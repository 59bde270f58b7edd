"""Settings of the trackers: CoMLRL's `wandb_config`, and `[wandb]` in a run file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from antiphon.clients.types import FieldError
from antiphon.learner.config.magrpo import TrackerName
from antiphon.services.common.settings import check_unknown


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class WandbConfig(BaseModel):
    """`[wandb]`: how a run appears in Weights & Biases, and in trackio, which takes some of it.

    In a script it is the trainer's `wandb_config`, a mapping with these keys.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    project: str = "antiphon"
    """Project that the run belongs to."""
    entity: str | None = None
    """User or team that the project belongs to; none: the default of who is logged in."""
    name: str | None = None
    """Name of the run; none: that of the run folder."""
    run_name: str | None = None
    """Another word for `name`."""
    dir: Path | None = None
    """Where files are kept; none: the run folder."""
    tags: Annotated[tuple[str, ...], BeforeValidator(_one_or_more)] = ()
    """Tags of the run."""
    group: str | None = None
    """Group that the run belongs to."""
    job_type: str | None = None
    """Kind of run."""
    notes: str | None = None
    """A longer description."""
    id: str | None = None
    """Id of the run; none: that of the run folder, so that a resumed run goes on where it was."""
    resume: bool | Literal["allow", "never", "must", "auto"] | None = "allow"
    """What to do where the id exists, as `wandb.init` takes it."""
    mode: Literal["online", "offline", "disabled", "shared"] | None = None
    """Whether to send figures; none: what ``WANDB_MODE`` says, else `online`."""
    offline: bool = False
    """Keep figures on disk, to be sent later with ``wandb sync``; the same as mode `offline`."""
    config_sections: Mapping[str, Any] = {}
    """More entries for the run's settings there."""
    verbose: bool | None = None
    """Whether progress is shown on the terminal; none: what `config_sections.output.verbose` says,
    else true."""

    @property
    def wandb_mode(self) -> str | None:
        """`mode` for `wandb.init`."""
        return "offline" if self.mode is None and self.offline else self.mode

    @property
    def shows_progress(self) -> bool:
        """Whether progress is shown on the terminal."""
        if self.verbose is not None:
            return self.verbose
        output = self.config_sections.get("output")
        return bool(output.get("verbose", True)) if isinstance(output, Mapping) else True

    @property
    def config_entries(self) -> dict[str, Any]:
        """What `config_sections` adds: each section, and the dataset's name and type by name."""
        entries = dict(self.config_sections)
        dataset = self.config_sections.get("dataset")
        if isinstance(dataset, Mapping):
            for key in ("name", "type"):
                if dataset.get(key):
                    entries[f"dataset_{key}"] = dataset[key]
        return entries

    def run_name_or(self, default: str) -> str:
        """Name of the run, `default` where none is given."""
        return self.name or self.run_name or default


def read_wandb_config(given: Mapping[str, Any] | None) -> WandbConfig | None:
    """Check a script's `wandb_config`; values that are None count as not given.

    Raises:
        FieldError: An unknown key (naming the nearest known one) or a value that does not fit.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise FieldError("wandb_config", type(given).__name__, "a mapping or None")
    values = {key: value for key, value in given.items() if value is not None}
    check_unknown(WandbConfig, values, "wandb_config")
    try:
        return WandbConfig(**values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, ("wandb_config", *first["loc"])))
        raise FieldError(field, repr(first["input"]), first["msg"]) from error


def trackers_of(
    trackers: tuple[TrackerName, ...], wandb: WandbConfig | None
) -> tuple[TrackerName, ...]:
    """The trackers of a run, each once.

    Where none is listed but settings of Weights & Biases are given, it is Weights & Biases, as in
    CoMLRL; settings that say nothing but `verbose` turn nothing on.
    """
    if not trackers and wandb is not None and wandb.model_fields_set != {"verbose"}:
        return ("wandb",)
    return tuple(dict.fromkeys(trackers))
