"""A run in which nobody ever answers twice says so."""

from __future__ import annotations

from tests.support.trees import make_node

from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.rollout.tree import BranchStop, Node
from antiphon.learner.run.later_turns import LaterTurns


def tree(*stops: BranchStop | None) -> Node:
    """A root whose branches ended for these reasons; None goes on."""
    root = make_node([0.5] * len(stops))
    for branch, stop in zip(root.branches, stops, strict=True):
        branch.stop = stop
    return root


ENDED = tree(BranchStop.EARLY_TERMINATION, BranchStop.EARLY_TERMINATION)


def test_four_prompts_without_a_second_turn_are_told_once() -> None:
    later = LaterTurns(MAGRPOConfig(num_turns=2))
    assert later.observe([ENDED, ENDED]) is None
    assert later.observe([ENDED]) is None
    told = later.observe([ENDED, ENDED])
    assert told is not None
    assert "early_termination_threshold (-0.2)" in told
    assert later.observe([ENDED] * 8) is None


def test_a_branch_that_goes_on_or_ends_otherwise_is_no_reason_to_speak() -> None:
    for other in (None, BranchStop.UNSCORED, BranchStop.TRANSITION):
        later = LaterTurns(MAGRPOConfig(num_turns=2))
        first = tree(BranchStop.EARLY_TERMINATION, other)
        assert later.observe([first, ENDED, ENDED, ENDED]) is None
        assert later.observe([ENDED] * 8) is None


def test_a_resumed_run_says_nothing_of_prompts_that_it_has_not_seen() -> None:
    assert LaterTurns(MAGRPOConfig(num_turns=2), resumed=True).observe([ENDED] * 8) is None


def test_runs_of_one_turn_say_nothing() -> None:
    assert LaterTurns(MAGRPOConfig(num_turns=1)).observe([ENDED] * 8) is None
