"""Evaluations that somebody asks for while a run trains; they are made between rollout batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from antiphon.clients.types import EvaluationResult


class EvaluationRefusedError(Exception):
    """No evaluation can be made; says why."""


@dataclass
class EvaluationRequest:
    """One evaluation that is asked for.

    Attributes:
        num_samples: Most tasks, None for the run's setting.
        dropped: Whether nobody waits for it any more.
    """

    num_samples: int | None
    dropped: bool = False
    _results: asyncio.Queue[EvaluationResult | Exception] = field(default_factory=asyncio.Queue)

    def deliver(self, result: EvaluationResult) -> None:
        """Tell whoever asked; the result of the whole evaluation comes last."""
        self._results.put_nowait(result)

    def fail(self, error: Exception) -> None:
        """There will be no more results."""
        self._results.put_nowait(error)

    async def results(self) -> AsyncGenerator[EvaluationResult, None]:
        """Results as they come, that of the whole evaluation last.

        Raises:
            EvaluationRefusedError: The evaluation is not made, or not to its end.
        """
        try:
            while True:
                result = await self._results.get()
                if isinstance(result, Exception):
                    raise result
                yield result
                if not result.task_id:
                    return
        finally:
            self.dropped = True


class EvaluationRequests:
    """Who waits for an evaluation. Used from the event loop only.

    Attributes:
        asked: Set while somebody waits.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._waiting: list[EvaluationRequest] = []
        self._refusal: str | None = None

    def ask(self, num_samples: int | None) -> EvaluationRequest:
        """Ask for an evaluation.

        Args:
            num_samples: Most tasks, None for the run's setting.

        Raises:
            EvaluationRefusedError: None can be made.
        """
        if self._refusal is not None:
            raise EvaluationRefusedError(self._refusal)
        request = EvaluationRequest(num_samples)
        self._waiting.append(request)
        self.asked.set()
        return request

    def take(self) -> list[EvaluationRequest]:
        """Those who wait, in order; whoever takes them answers them."""
        waiting, self._waiting = self._waiting, []
        self.asked.clear()
        return [request for request in waiting if not request.dropped]

    def refuse(self, reason: str) -> None:
        """From now on none can be made; those who wait learn it too."""
        self._refusal = reason
        for request in self.take():
            request.fail(EvaluationRefusedError(reason))
