"""The settings of a LoRA adapter. Needs neither torch nor peft."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator


def _list_or_word(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Modules = Annotated[tuple[str, ...] | str, BeforeValidator(_list_or_word)]


class LoraSettings(BaseModel):
    """A LoRA adapter (arXiv 2106.09685): what is trained, while the model's own weights stay.

    A linear layer x computes base(x) + B(A(x)) * alpha / r. A is drawn from `seed`, B starts at
    zero, so that training starts from the model as it is.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    r: int = Field(default=8, ge=1)
    """Rank of A and B."""
    alpha: float = Field(default=16.0, gt=0)
    """The adapter's part is scaled by alpha / r."""
    target_modules: Modules = "all-linear"
    """Layers that are adapted, by the end of their names, for example ``["q_proj", "v_proj"]``;
    ``"all-linear"`` takes every linear layer but the head."""
    use_rslora: bool = False
    """Scale by alpha / sqrt(r) instead (arXiv 2312.03732)."""
    dropout: float = 0.0
    """Only 0: there is no dropout on either side."""
    bias: Literal["none"] = "none"
    """Only ``"none"``: no bias is trained."""

    @field_validator("dropout")
    @classmethod
    def _no_dropout(cls, value: float) -> float:
        if value != 0:
            raise ValueError(
                f"got {value}, wanted 0: what is sampled is what is trained, without dropout"
            )
        return value
