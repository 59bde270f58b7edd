"""The gap between engine and learner is told where both have the same weights, and warned of."""

from __future__ import annotations

from typing import Any

from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.policy.engine_gap import GapWatch, engine_gap
from antiphon.learner.policy.policy import StepStats
from antiphon.learner.policy.updates import AgentUpdate
from antiphon.learner.record.metric_rows import Figures, add_updates


def node(version: int = 3) -> TrainingSample:
    return TrainingSample(1, 1, "t", 0, (), (5,), (), False, None, None, version)


def update_of(agent: int, *steps: tuple[list[TrainingSample], StepStats]) -> AgentUpdate:
    return AgentUpdate(agent, list(steps), published=3)


def stats(mean: float = 0.0, *, stepped: bool = True, **values: Any) -> StepStats:
    given = {"logprob_gap_mean": mean, "logprob_gap_max": 2 * mean, **values}
    return StepStats(stepped, 1, 0, tokens=4, **given)


def test_the_first_step_at_the_weights_that_were_sampled_shows_it() -> None:
    dead, first, later = stats(stepped=False), stats(0.01), stats(0.3)
    steps = [([node()], dead), ([node()], first), ([node()], later)]
    assert engine_gap(update_of(1, *steps)) is first
    assert engine_gap(update_of(1, ([node(), node(2)], first), ([node()], later))) is None
    assert engine_gap(update_of(1, ([node()], dead))) is None


def test_nodes_that_waited_in_the_buffer_over_a_publish_do_not_show_it() -> None:
    """They entered at the weights that were published then, and are stepped on at later ones."""
    waited = [([node(3)], stats(0.3))]
    assert engine_gap(AgentUpdate(1, waited, published=3)) is waited[0][1]
    assert engine_gap(AgentUpdate(1, waited, published=4)) is None


def test_a_row_of_the_metrics_tells_it_beside_the_gap_of_all_steps() -> None:
    figures = Figures()
    first = stats(0.01, ratio_mean=1.01, ratio_max=1.02)
    add_updates(figures, [update_of(1, ([node()], first), ([node()], stats(0.3)))])
    row = figures.read()
    assert row["agent_1/engine_gap_mean"] == 0.01
    assert row["agent_1/engine_gap_max"] == 0.02
    assert row["agent_1/engine_ratio_mean"] == 1.01
    assert row["agent_1/engine_ratio_max"] == 1.02
    assert row["agent_1/logprob_gap_max"] == 0.6


def test_each_agent_is_warned_of_once_above_the_bound() -> None:
    def update(agent: int, gap: float) -> AgentUpdate:
        return update_of(agent, ([node()], stats(gap, ratio_mean=1.1, ratio_max=1.5)))

    watch = GapWatch(0.05)
    assert watch.observe([update(0, 0.05), update(1, 0.01)]) == []
    (warning,) = watch.observe([update(0, 0.06), update(1, 0.01)])
    for part in ("agent 0", "0.06 on average", "0.12 at most", "1.5 at most", "bound is 0.05"):
        assert part in warning
    assert watch.observe([update(0, 0.5)]) == []
    assert len(watch.observe([update(1, 0.5)])) == 1
    assert GapWatch(None).observe([update(0, 9.0)]) == []
