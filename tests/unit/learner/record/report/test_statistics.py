"""What the report says about a run, worked out by hand for the run of `made_run`."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.unit.learner.record.report.made_run import make_run

from antiphon.learner.record.report.charts import short, ticks
from antiphon.learner.record.report.run_data import TreeRewards, read_run
from antiphon.learner.record.report.statistics import buckets, comparisons, distributions, quantile
from antiphon.learner.record.report.trees import shown_trees


def test_later_answers_are_compared_branch_by_branch(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path).path)
    (found,) = comparisons(run.tree_rewards())
    assert found.turn == 2
    # Branches that went on: +3 and 0 in the first tree, -1 in the second; none in the third.
    assert (found.branches, found.better, found.equal, found.worse) == (3, 1, 1, 1)
    assert found.prompts == 2
    # By tree: mean(3, 0) = 1.5 and -1; their mean 0.25, their deviation 2.5 / sqrt(2).
    assert found.change == pytest.approx(0.25)
    half = 1.96 * (2.5 / math.sqrt(2)) / math.sqrt(2)
    assert found.interval == pytest.approx((0.25 - half, 0.25 + half))
    # Means of the branches that went on: mean(0, 1) then 3; of what followed: mean(3, 1) then 2.
    assert found.first == [(0.0, 0.5), (1.0, 3.0)]
    assert found.second == [(0.0, 2.0), (1.0, 2.0)]


def test_the_distribution_of_rewards_counts_those_that_are_missing(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path).path)
    found = distributions(run.tree_rewards())
    assert found.bins == ("0", "1", "2", "3", "4", "5")
    first, second = found.turns
    # Turn 1: 0 1 3 5 1 1.  Turn 2: 2 4 1 1 2 and one missing.
    assert (first.count, first.missing, second.count, second.missing) == (6, 0, 5, 1)
    assert first.shares == pytest.approx((1 / 6, 3 / 6, 0, 1 / 6, 0, 1 / 6))
    assert second.shares == pytest.approx((0, 2 / 5, 2 / 5, 0, 1 / 5, 0))
    assert (first.mean, second.mean) == (pytest.approx(11 / 6), pytest.approx(2.0))
    assert (first.smallest, first.quartiles, first.largest) == (0, (1.0, 1.0, 2.5), 5)
    assert second.deviation == pytest.approx(math.sqrt(6 / 4))


def test_many_different_rewards_share_bins_and_the_largest_is_in_the_last() -> None:
    rewards = [index / 40 for index in range(41)]
    found = distributions([TreeRewards(1, 0, 0, {(): list(rewards)})])
    assert len(found.bins) == 20
    (turn,) = found.turns
    assert turn.shares[0] == pytest.approx(2 / 41)
    assert turn.shares[-1] == pytest.approx(3 / 41)
    assert sum(turn.shares) == pytest.approx(1.0)


def test_a_comparison_of_one_tree_has_no_interval() -> None:
    (found,) = comparisons([TreeRewards(1, 0, 0, {(): [0.0, None], (0,): [1.0], (1,): [2.0]})])
    assert (found.branches, found.interval) == (1, None)


def test_long_curves_are_averaged_in_groups() -> None:
    points = [(float(x), float(x)) for x in range(1, 8)]
    assert buckets(points, 3) == ([(3.0, 2.0), (6.0, 5.0), (7.0, 7.0)], 3)
    assert buckets(points, 7) == (points, 1)


def test_quantiles_lie_between_the_values() -> None:
    assert [quantile([1.0, 2.0, 4.0], share) for share in (0.0, 0.25, 0.75, 1.0)] == [1, 1.5, 3, 4]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (3.0, 3.0, [3.0]),
        (-0.3, 0.9, [-0.5, 0.0, 0.5, 1.0]),
        (0.0, 1184.0, [0.0, 500.0, 1000.0, 1500.0]),
    ],
)
def test_ticks_are_round_and_hold_the_range(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected


def test_numbers_beside_an_axis_are_short() -> None:
    assert [short(v) for v in (0.25, 1500.0, 25000.0, 3.5e6)] == ["0.25", "1500", "25k", "3.5M"]


def test_time_by_stage_is_summed_over_the_run(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path).path)
    assert run.stage_seconds() == {
        "generate": 18.0,
        "push": 1.5,
        "score": 3.0,
        "transition": 1.5,
        "update": 6.0,
    }
    assert run.counter("elapsed_seconds") == 30.0


def test_a_last_line_that_is_not_whole_is_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path, finished=False)
    with folder.metrics_file.open("a") as file:
        file.write('{"joint_actions": 99, "turn_1/re')
    run = read_run(folder.path)
    assert [row["joint_actions"] for row in run.rows] == [6, 10, 12]
    assert run.curves()["turn_1/reward_mean"] == [(6, 0.5), (10, 4.0), (12, 1.0)]
    assert run.summary is None


def test_a_sample_of_trees_holds_the_last_and_the_first(tmp_path: Path) -> None:
    folder = make_run(tmp_path).rollouts_folder
    assert [tree["row"] for tree in shown_trees(folder, 2).values] == [0, 2]
    assert [tree["row"] for tree in shown_trees(folder, 1).values] == [2]
    everything = shown_trees(folder, 0)
    assert ([tree["row"] for tree in everything.values], everything.kept) == ([0, 1, 2], 3)


def test_a_shown_tree_tells_texts_and_scores(tmp_path: Path) -> None:
    first, second, _ = shown_trees(make_run(tmp_path).rollouts_folder, 0).values
    root, child, _ = first["nodes"]
    assert root["prompts"] == ["user: </script><b>hello</b>", "prompt 1"]
    assert root["actions"][0]["components"] == {"style": 0.25}
    assert [action["reward"] for action in child["actions"]] == [2.0, 4.0]
    assert child["answers"][0][1]["text"] == "21 2"
    # Returns 2 and 4: mean 3, population standard deviation 1.
    assert child["answers"][0][1]["advantage"] == pytest.approx(1.0)
    assert second["nodes"][0]["actions"][1]["stop"] == "truncated"
    assert second["nodes"][1]["actions"][1]["missing"] == "judge timed out"
