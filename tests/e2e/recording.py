"""Listens to a run at the wire: every batch that its agents had generated, in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from antiphon.clients.generation import GenerationClient
from antiphon.clients.types import Completion, GenerateRequest


@dataclass
class Batch:
    """One Generate call and the completions that it gave."""

    request: GenerateRequest
    completions: list[Completion] = field(default_factory=list)

    def by_prompt(self) -> list[list[Completion]]:
        """[prompts][samples], in the order asked."""
        rows: list[list[Completion]] = [[] for _ in self.request.prompts]
        for completion in sorted(self.completions, key=lambda c: c.sample_index):
            rows[completion.prompt_index].append(completion)
        for row, prompt in zip(rows, self.request.prompts, strict=True):
            assert len(row) == len(prompt.seeds)
        return rows


class Recording:
    """Batches by agent, in the order in which they were asked."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Batch]] = defaultdict(list)

    def completions(self) -> list[Completion]:
        """All of them."""
        return [c for batches in self.batches.values() for b in batches for c in b.completions]


def record_generation(monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Records what every GenerationClient of this process receives from now on."""
    recording = Recording()
    original = GenerationClient.generate

    async def generate(
        client: GenerationClient, request: GenerateRequest, **options: Any
    ) -> AsyncIterator[Completion]:
        batch = Batch(request)
        recording.batches[request.agent].append(batch)
        async for completion in original(client, request, **options):
            batch.completions.append(completion)
            yield completion

    monkeypatch.setattr(GenerationClient, "generate", generate)
    return recording
