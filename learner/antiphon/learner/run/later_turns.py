"""Says so where no branch ever goes on: later turns are then neither sampled nor trained."""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.rollout.tree import BranchStop, Node

PROMPTS = 4
"""So many prompts without a second turn, before any with one, are told of."""


class LaterTurns:
    """Watches the first prompts of a run for branches that go on.

    Args:
        config: Of the run.
        resumed: Whether this process goes on with a run, whose first prompts it has not seen.
    """

    def __init__(self, config: MAGRPOConfig, *, resumed: bool = False) -> None:
        self._threshold = config.early_termination_threshold
        self._watching = config.num_turns > 1 and not resumed
        self._ended = 0

    def observe(self, roots: Iterable[Node]) -> str | None:
        """Take in trees; what the user should know, once, else None."""
        for root in roots if self._watching else ():
            stops = {branch.stop for branch in root.branches}
            self._watching = self._watching and stops == {BranchStop.EARLY_TERMINATION}
            self._ended += 1
            if self._watching and self._ended == PROMPTS:
                self._watching = False
                return (
                    f"{PROMPTS} prompts, and none had a second turn: their mean rewards are above "
                    f"early_termination_threshold ({self._threshold:g}); unless that is meant, set "
                    'it to a reward that needs no second answer, or to "none"'
                )
        return None
