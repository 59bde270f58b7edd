"""Where a policy's model comes from, told to every rank that holds a part of it."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from antiphon.learner.config.lora import LoraSettings
from antiphon.learner.policy.adapters import with_adapter
from antiphon.services.common.models import load_architecture, load_model


class ModelSource(BaseModel):
    """A model on disk or on the hub, which every node can read, and its adapter.

    `lora` None trains the whole model; else its first weights follow from `agent` and `seed`.
    """

    model_config = ConfigDict(frozen=True)

    agent: int
    model: str
    gguf_file: str | None = None
    lora: LoraSettings | None = None
    seed: int = 0

    def architecture(self, dtype: torch.dtype) -> Any:
        """The model without its weights: memory that nobody has touched, so it takes none."""
        return self._adapted(load_architecture(self.model, dtype=dtype, gguf_file=self.gguf_file))

    def load(self) -> Any:
        """The whole model, float32, in main memory."""
        return self._adapted(load_model(self.model, dtype=torch.float32, gguf_file=self.gguf_file))

    def _adapted(self, model: Any) -> Any:
        if self.lora is None:
            return model
        return with_adapter(model, self.lora, agent=self.agent, seed=self.seed)
