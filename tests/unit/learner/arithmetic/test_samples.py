from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.trees import make_completion, make_node

from antiphon.clients.types import FieldError
from antiphon.learner.arithmetic.samples import training_samples
from antiphon.learner.rollout.tree import AgentPrompt, Node, ReferenceTerm


def samples_of(root: Node, num_agents: int = 2, mode: str = "mean") -> list:
    return training_samples(root, num_agents=num_agents, discount=1.0, mode=mode, normalize=False)


def test_every_agent_has_one_sample_per_node_in_pre_order() -> None:
    children = {
        0: make_node([1.0, 3.0], path=(0,), children={1: make_node([0.0, 2.0], path=(0, 1))}),
        1: make_node([0.0, 1.0], path=(1,)),
    }
    agents = samples_of(make_node([1.0, 0.0], children=children))
    for agent, samples in enumerate(agents):
        assert [s.agent for s in samples] == [agent] * 4
        assert [s.path for s in samples] == [(), (0,), (0, 1), (1,)]
        assert [s.turn for s in samples] == [1, 2, 3, 2]
        assert [s.prompt_token_ids for s in samples] == [(10 + agent,)] * 4
    # Returns: (0, 1): 0, 2; (0,): 1, 3 + 1 = 4; (1,): 0, 1; root: 1 + 2.5 = 3.5, 0 + 0.5 = 0.5.
    root, first, second, third = agents[0]
    assert [c.return_ for c in root.completions] == [3.5, 0.5]
    assert [c.advantage for c in root.completions] == [1.5, -1.5]
    assert [c.advantage for c in first.completions] == [-1.5, 1.5]
    assert [c.advantage for c in second.completions] == [-1.0, 1.0]
    assert [c.advantage for c in third.completions] == [-0.5, 0.5]
    assert (root.mean_reward, root.mean_return) == (0.5, 2.0)


def test_groups_are_one_prompt_of_one_agent_at_one_node() -> None:
    """L17: advantages of a turn-2 node are told from that node's returns alone."""
    children = {0: make_node([100.0, 102.0], path=(0,)), 1: make_node([0.0, 4.0], path=(1,))}
    agents = samples_of(make_node([0.0, 0.0], children=children))
    assert [[c.advantage for c in s.completions] for s in agents[1][1:]] == [[-1, 1], [-2, 2]]


def test_cross_gives_each_agent_its_own_returns() -> None:
    node = make_node([1.0, 2.0, 4.0, 8.0], num_generations=2, mode="cross")
    first, second = samples_of(node)
    assert [c.return_ for c in first[0].completions] == [1.5, 6.0]
    assert [c.advantage for c in first[0].completions] == [-2.25, 2.25]
    assert [c.return_ for c in second[0].completions] == [2.5, 5.0]
    assert [c.advantage for c in second[0].completions] == [-1.25, 1.25]


def test_what_the_engine_sent_is_what_is_trained() -> None:
    """L13: ids, log-probabilities and kept sizes come from the wire, unchanged."""
    completion = samples_of(make_node([0.0, 1.0]))[1][0].completions[1]
    assert completion.token_ids == (21, 2)
    assert completion.logprobs == (-1 / 8, -2 / 8)
    assert completion.kept_sizes == (1, 2)


def test_completions_without_a_return_are_left_out() -> None:
    """L6: rewards [1, NaN, 0.5, inf] train the two that are finite."""
    sample = samples_of(make_node([1.0, float("nan"), 0.5, float("inf")]))[0][0]
    assert not sample.dead
    assert [c.token_ids for c in sample.completions] == [(20, 2), (22, 2)]
    assert [c.advantage for c in sample.completions] == [0.25, -0.25]
    assert sample.mean_reward == 0.75


def test_a_node_with_one_return_is_dead_and_still_a_sample() -> None:
    """L6: [1, None] trains nothing and is counted."""
    sample = samples_of(make_node([1.0, None]))[0][0]
    assert sample.dead
    assert [c.advantage for c in sample.completions] == [0.0]


def test_a_node_without_scores_is_dead() -> None:
    sample = samples_of(make_node([None, None]))[0][0]
    assert (sample.dead, sample.completions) == (True, ())
    assert (sample.mean_reward, sample.mean_return) == (None, None)


def test_an_end_token_alone_is_a_completion() -> None:
    """L16: an answer that ends at once is kept and its end token trains."""
    node = make_node([0.0, 1.0], num_agents=1)
    node.completions = ((make_completion((10,), (2,)), node.completions[0][1]),)
    assert [c.token_ids for c in samples_of(node, 1)[0][0].completions] == [(2,), (21, 2)]


def test_the_oldest_version_is_the_lowest_of_all_spans() -> None:
    node = make_node([0.0, 1.0], num_agents=1)
    older = make_completion((10,), (5, 6, 2), versions=(4, 5))
    newer = make_completion((10,), (5, 6, 2), versions=(6,))
    node.completions = ((newer, older),)
    assert samples_of(node, 1)[0][0].oldest_version == 4


def test_three_agents_stay_three() -> None:
    """L18: N is what was given; a contradiction is an error."""
    node = make_node([0.0, 1.0], num_agents=3)
    assert len(samples_of(node, 3)) == 3
    with pytest.raises(FieldError, match="2 of each"):
        samples_of(node, 2)


def test_a_completion_to_another_prompt_is_refused() -> None:
    """L17: one prompt per group."""
    node = make_node([0.0, 1.0])
    node.prompts = (node.prompts[0], AgentPrompt("prompt 1", (10, 99)))
    with pytest.raises(FieldError, match=r"completions\[1\]\[0\].prompt_token_ids"):
        samples_of(node)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"logprobs": (-0.5,)}, "logprobs"),
        ({"kept_sizes": (1, 2, 3)}, "kept_sizes"),
        ({"token_ids": (), "logprobs": (), "kept_sizes": ()}, "token_ids"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(change: dict, field: str) -> None:
    node = make_node([0.0, 1.0], num_agents=1)
    first, second = node.completions[0]
    node.completions = ((first, replace(second, **change)),)
    with pytest.raises(FieldError, match=rf"completions\[0\]\[1\].{field}"):
        samples_of(node, 1)


def test_a_reference_kl_moves_the_advantages_and_not_the_means_that_are_told() -> None:
    node = make_node([1.0, 1.0])
    node.references = tuple(
        (ReferenceTerm(kl, (-0.5, -0.25)), ReferenceTerm(0.0, (-1.0, -2.0))) for kl in (2.0, 0.0)
    )
    first, second = training_samples(
        node, num_agents=2, discount=1.0, mode="mean", normalize=False, reference_kl_coef=0.5
    )
    # Agent 0: returns 1 - 0.5 * 2 = 0 and 1. Agent 1: 1 and 1, as its answers stayed.
    assert [c.return_ for c in first[0].completions] == [0.0, 1.0]
    assert [c.advantage for c in first[0].completions] == [-0.5, 0.5]
    assert (first[0].dead, second[0].dead) == (False, True)
    assert (first[0].mean_reward, first[0].mean_return) == (1.0, 1.0)
    assert [c.reference_logprobs for c in first[0].completions] == [(-0.5, -0.25), (-1.0, -2.0)]
