"""The benchmark of generation: what it asks of every side, and what it refuses to time."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.generation import measure
from benchmarks.generation_parts.work import SAMPLES, Work


class Side:
    """Stands for a worker; each completion takes `rate` of them a second."""

    def __init__(self, rate: float, lengths: list[int], error: float = 0.0) -> None:
        self._seconds, self._lengths, self._error = sum(lengths) / rate, lengths, error
        self.asked: list[str] = []

    def ask(self, **what: Any) -> None:
        self.asked.append(what["side"])

    def answer(self) -> dict[str, Any]:
        if self.asked[-1] == "check":
            return {"error": self._error, "cpu_seconds": 1.0}
        return {
            "seconds": self._seconds,
            "lengths": self._lengths,
            "cpu_seconds": 2.0,
            "completions": [[[5], [6], [1], [0.0]]] * len(self._lengths),
        }


def test_the_ratio_is_that_to_the_others_of_all_agents_tokens() -> None:
    ours: Any = [Side(300, [10, 20]), Side(600, [10, 20])]
    theirs: Any = [Side(100, [10, 20]), Side(200, [10, 20])]
    found = measure(ours, theirs, 2, 3)
    assert found["tokens"] == 60
    assert found["tokens_per_second"]["antiphon"] == 600
    assert found["cpu_seconds"]["antiphon"] == 4
    assert found["ratio"] == 3


@pytest.mark.parametrize(
    ("theirs", "message"),
    [(Side(1, [10, 21]), "other numbers of tokens"), (Side(1, [10, 20], 0.1), "off by 0.1")],
)
def test_different_work_or_wrong_logprobs_are_not_timed(theirs: Any, message: str) -> None:
    ours: Any = Side(1, [10, 20])
    with pytest.raises(SystemExit, match=message):
        measure([ours], [theirs], 2, 1)


@pytest.mark.parametrize("size", [8, 32, 128])
def test_every_size_has_distinct_prompts(size: int) -> None:
    prompts = Work(size, "fixed").prompts
    assert len(set(prompts)) * SAMPLES == size
