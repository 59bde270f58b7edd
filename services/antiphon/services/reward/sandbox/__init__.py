"""Runs Python that a model wrote, with tests, in a fresh process that can do little harm.

    outcome = Sandbox().run("double = lambda x: 2 * x", ["assert double(2) == 4"])
    outcome.passed  # 1

``python -m antiphon.services.reward.sandbox`` says which protections hold on a machine.
"""

from antiphon.services.reward.sandbox.report import SyntaxProblem
from antiphon.services.reward.sandbox.sandbox import Limits, Protection, Sandbox, SandboxError
from antiphon.services.reward.sandbox.tests import Outcome, TestResult

__all__ = [
    "Limits",
    "Outcome",
    "Protection",
    "Sandbox",
    "SandboxError",
    "SyntaxProblem",
    "TestResult",
]
