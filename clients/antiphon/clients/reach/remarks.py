"""What a step of reaching a service came to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What a step came to."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True)
class Remark:
    """One step: what was looked at, how it is, and what to do where that is not well."""

    what: str
    verdict: Verdict
    detail: str
    advice: str = ""


class FaultError(Exception):
    """A step that failed, and with it those that need it.

    Args:
        what: The step.
        detail: What is wrong.
        advice: What to do about it.
    """

    def __init__(self, what: str, detail: str, advice: str) -> None:
        super().__init__(detail)
        self.remark = Remark(what, Verdict.FAULT, detail, advice)
