"""What ours does with user functions where CoMLRL goes wrong.

The names are those of `faults.FAULTS`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.parity_parts import our_run, script
from benchmarks.parity_parts.cases import Case
from benchmarks.parity_parts.faults import REFUSED
from benchmarks.parity_parts.scenarios import HALF_A_TRANSITION, TWO_REWARDS, small_case

from antiphon.services.common.errors import UserFunctionError


def _refused(case: Case, why: str, **given: Any) -> str:
    """The word for a run that a user function has stopped, with an error that says `why`."""
    try:
        our_run.run(case, **given)
    except UserFunctionError as error:
        if why in str(error):
            return REFUSED
        raise
    raise AssertionError("the fault was swallowed")


def by_count() -> float:
    def reward(a: list[str], b: list[str], bonus: Any = None) -> list[float]:  # noqa: ARG001
        return [1.0 if bonus else 0.0]

    ran = our_run.run(small_case(num_agents=2), reward=reward)
    return float(ran.watched[0].minibatches[0][0].completions[0].return_)


def type_error() -> float:
    calls = []

    def reward(a: list[str]) -> list[float]:
        calls.append(a)
        raise TypeError("in the user's own code")

    _refused(small_case(), "raised TypeError", reward=reward)
    return float(len(calls))


def one_for_four() -> str:
    def reward(a: list[str], b: list[str]) -> float:
        assert len(a) == len(b) == 4
        return 0.5

    case = small_case(num_agents=2, num_generations=4)
    return _refused(case, "wanted a sequence of 4", reward=reward, reward_batch_size=4)


def two_for_one() -> str:
    return _refused(small_case(), "2 values", reward=lambda a: TWO_REWARDS)  # noqa: ARG005


def changed_history() -> float:
    seen: list[int] = []

    def transition(
        prompt: str,
        prompt_history_per_agent: list[list[str]],
        response_history_per_agent: list[list[str]],
        num_agents: int,
    ) -> list[str]:
        seen.append(len(prompt_history_per_agent[0]))
        prompt_history_per_agent[0].append("changed")
        return script.transition(prompt, response_history_per_agent, num_agents)

    our_run.run(small_case(num_turns=2), transition=transition)
    return float(seen[1])


def half_a_transition() -> str:
    case = small_case(num_agents=2, num_turns=2)
    return _refused(case, "None", transition=lambda prompt: HALF_A_TRANSITION)  # noqa: ARG005


def run() -> dict[str, float | str]:
    """Every such fault's number or word."""
    return {
        "by_count": by_count(),
        "type_error": type_error(),
        "one_for_four": one_for_four(),
        "two_for_one": two_for_one(),
        "changed_history": changed_history(),
        "half_a_transition": half_a_transition(),
    }
