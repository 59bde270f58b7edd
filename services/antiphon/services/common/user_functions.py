"""A user's reward and transition functions, by the names that others import.

What a function gets are copies, so that it may change them. It is called once per joint action, or
per batch of them; what it raises or answers wrongly is a `UserFunctionError` that names it.
"""

from antiphon.services.common.load_function import load_function
from antiphon.services.common.reward_function import REWARD_NAMES, RewardFunction
from antiphon.services.common.transition_function import (
    END,
    TRANSITION_NAMES,
    End,
    TransitionFunction,
)
from antiphon.services.common.user_function import RecordCall

__all__ = [
    "END",
    "REWARD_NAMES",
    "TRANSITION_NAMES",
    "End",
    "RecordCall",
    "RewardFunction",
    "TransitionFunction",
    "load_function",
]
