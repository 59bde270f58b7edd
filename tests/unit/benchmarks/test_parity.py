"""The parity benchmark's pure parts: relations, right answers, rows, the page."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from benchmarks.parity_parts import cases, page, relations, rows
from benchmarks.parity_parts.faults import FAULTS, Fault
from benchmarks.parity_parts.scenarios import TWO_TURNS, answer_of_turn, k3, logprob, small_case
from benchmarks.parity_parts.script import child, label, transition
from benchmarks.peer import ROOT

SPREAD = math.sqrt(2.5)
RECENTRED = [-2 / SPREAD, -1 / SPREAD, 1 / SPREAD, 2 / SPREAD]
"""Of returns 1, 2, 4, 5: their mean is 3 and their variance (4 + 1 + 1 + 4) / 4."""


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("mean", [-2 / SPREAD, -1 / SPREAD, 1 / SPREAD, 2 / SPREAD]),
        ("rloo", [v / 3 / SPREAD for v in (-8, -4, 4, 8)]),
        ("max", [v / SPREAD for v in (-4, -3, -1, 0)]),
        ("raw", [v / math.sqrt(11.5) for v in (1, 2, 4, 5)]),
    ],
)
def test_our_normalised_advantages_follow_from_recentred_ones(
    mode: str, expected: list[float]
) -> None:
    found = relations.ours_from_recentred(mode, RECENTRED, [1.0, 2.0, 4.0, 5.0])
    assert found == pytest.approx(expected, abs=1e-12)


def test_equal_returns_have_no_recentred_advantage_but_a_raw_one() -> None:
    dead, returns = [0.0, 0.0], [0.5, 0.5]
    assert relations.ours_from_recentred("max", dead, returns) == [0.0, 0.0]
    assert relations.ours_from_recentred("raw", dead, returns) == pytest.approx([1.0, 1.0])
    assert relations.ours_from_recentred("raw", dead, [0.0, 0.0]) == [0.0, 0.0]


def test_a_later_reward_is_a_mean_over_the_tree() -> None:
    first, second = child("t0", [0, 0]), child("t0", [1, 1])
    rewards = {"t0": [1.0, 0.0], first: [0.5, 1.0]}  # the second joint action ended there
    assert second not in rewards
    later = [relations.mean_reward_later(rewards, "t0", 0, turns, 2) for turns in (0, 1, 2)]
    assert later == [0.5, 0.375, 0.0]  # rewards are halved by the reward processor
    assert relations.mean_reward_later(rewards, "t0", 1, 1, 2) == 0.0


def _told(returns: list[float], advantages: list[float], **more: Any) -> dict[str, Any]:
    node = {
        "returns": returns,
        "advantages": advantages,
        "mean_reward": 0.25,
        "mean_return": 0.25,
    }
    return {
        "joint_actions": 2,
        "rewards": {"t0": [1.0, 0.0]},
        "samples": {"0": {"t0": node}},
        "steps": [[0, 1, ["t0"]]],
        **more,
    }


def test_a_difference_is_found_and_named() -> None:
    case = small_case()
    theirs = _told([0.5, 0.0], [0.25, -0.25], steps=[[0, 0, 1, ["t0"]]])
    same = dict(relations.compare(case, theirs, _told([0.5, 0.0], [0.25, -0.25])))
    assert set(same) == set(relations.EQUAL) - {"advantages_normalised"}
    assert not any(same.values())
    other = dict(relations.compare(case, theirs, _told([0.5, 0.125], [0.25, -0.5])))
    assert other["returns"] == 0.125
    assert other["advantages"] == 0.25
    assert other["rewards"] == 0.0


def test_an_evaluation_is_compared_turn_by_turn_with_discount_and_without() -> None:
    case = small_case(num_turns=2)
    theirs = {
        "eval/turn_1/reward_mean": 1.0,
        "eval/turn_1/expected_return": 1.5,
        "eval/turn_2/reward_mean": 0.5,
        "eval/turn_2/expected_return": 0.5,
    }
    discounted = {**theirs, "eval/turn_1/expected_return": 1.25}
    found = list(relations.compare_evaluation(case, theirs, theirs, discounted))
    names = {*relations.EVALUATION, "evaluation_returns_discounted"}
    assert {name for name, _ in found} == names
    assert not any(value for _, value in found)
    ours = {**theirs, "eval/turn_2/reward_mean": 0.25}
    # theirs stand for a discount that is left out: 1.5 where 1 + 0.5 * 0.5 is right.
    other = list(relations.compare_evaluation(case, theirs, ours, theirs))
    assert [pair for pair in other if pair[1]] == [
        ("evaluation_returns_discounted", 0.25),
        ("evaluation_rewards", 0.25),
    ]


def test_the_answers_of_two_turns_are_told_apart_by_the_prompt() -> None:
    asked = ("t0 a0", f"{child('t0', [0])} a0")
    assert tuple(answer_of_turn(prompt, 0) for prompt in asked) == TWO_TURNS[0]


def test_in_cross_a_sum_is_held_against_a_mean() -> None:
    case = replace(small_case(num_agents=2), joint_mode="cross")
    theirs = _told([1.0, 0.5], [0.25, -0.25], steps=[[0, 0, 1, ["t0"]]])
    found = dict(relations.compare(case, theirs, _told([0.5, 0.25], [0.125, -0.125])))
    assert found["cross_returns"] == 0.0
    assert found["cross_advantages"] == 0.0


def test_steps_are_put_together_by_drain_and_turn() -> None:
    case = small_case(rollout_buffer_size=3, train_batch_size=1)
    steps = [(0, 1, ["a"]), (0, 2, ["c"]), (0, 2, ["b"]), (0, 2, ["d"])]
    # Three nodes fill the buffer; the fourth is in the next drain, though of the same turn.
    assert list(relations.drained(steps, 0, case)) == [
        (1, [1], ["a"]),
        (2, [1, 1], ["b", "c"]),
        (2, [1], ["d"]),
    ]


def test_a_log_probability_by_hand_is_over_what_is_kept() -> None:
    logits = [math.log(p) for p in (0.5, 0.25, 0.125, 0.125)]
    # 0.5 does not reach 0.6, 0.75 does: two are kept, 2/3 and 1/3.
    kept = logprob(logits, 1, temperature=1.0, top_k=4, top_p=0.6)
    assert kept == pytest.approx(math.log(1 / 3))
    # At temperature 0.5 the masses are 16 : 4 : 1 : 1, and top-k keeps three of them.
    sharp = logprob(logits, 2, temperature=0.5, top_k=3, top_p=1.0)
    assert sharp == pytest.approx(math.log(1 / 21))


def test_a_reference_kl_by_hand_is_k3_of_a_token() -> None:
    # The reference holds the token half as likely: 1/2 - log(1/2) - 1.
    assert k3(math.log(0.5), math.log(0.25)) == pytest.approx(math.log(2) - 0.5)
    assert k3(-1.5, -1.5) == 0.0


def test_a_prompt_names_its_node() -> None:
    prompts = transition("t0", [["s1 w3", "s0 w1"], ["s0", "s2 w5"]], num_agents=2)
    assert prompts == ["t0 : s1 s0 : s0 s2"] * 2
    assert child(child("t0", [1, 0]), [0, 2]) == prompts[0]
    assert label(f"{prompts[1]} a1") == prompts[1]


def test_the_grid_covers_every_setting_once() -> None:
    grid = list(cases.grid())
    assert len({case.name for case in grid}) == len(grid) == 3 * 3 * 2 * 2 * 4 * 2
    assert all(case.num_generations == 2 for case in grid if case.joint_mode == "cross")


def _rows(comlrl: dict[str, float | str], ours: dict[str, float | str]) -> dict[str, rows.Row]:
    right = {fault.name: -1.0 for fault in FAULTS if fault.right is None}
    differences = dict.fromkeys([*relations.EQUAL, *relations.RELATIONS], (1e-7, 3))
    made = rows.rows(differences, comlrl, ours, right, "here")
    return {row["name"]: row for row in made}


def _right(fault: Fault) -> float | str:
    return -1.0 if fault.right is None else fault.right


def test_a_row_holds_only_where_it_was_measured_and_is_what_it_says() -> None:
    ours = {fault.name: _right(fault) for fault in FAULTS}
    wrong: dict[str, float | str] = {fault.name: 99.0 for fault in FAULTS}
    made = _rows({**wrong, "end_token": 0.25}, {**ours, "two_bos": 2.0})
    assert made["returns"]["holds"]
    assert not made["loss"]["holds"], "nothing was measured"
    assert made["pad_is_end"]["holds"]
    assert not made["end_token"]["holds"], "CoMLRL would be right"
    assert not made["two_bos"]["holds"], "ours would be wrong"
    assert {"name", "value", "unit", "wanted", "holds", "baseline", "machine"} <= set(
        made["two_bos"]
    )


def test_the_page_is_what_the_measured_rows_say() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "parity.json").read_text())
    assert (ROOT / "docs" / "parity.md").read_text() == page.page(measured)
    assert all(row["holds"] for row in measured)
