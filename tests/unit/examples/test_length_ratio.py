"""The task of the examples, in numbers worked out by hand."""

import math

import pytest
from examples.length_ratio import length_feedback, length_ratio_reward

CASES = [
    ("abcd", "abcdefgh", 1.0),  # 2: the lower end of the goal
    ("abcd", "abcdefghijkl", 1.0),  # 3: the upper end
    ("abcd", "abcd", math.exp(-1)),  # 1: one below
    ("ab", "abcdefghij", math.exp(-2)),  # 5: two above
    ("", "ab", 1.0),  # an empty first answer counts as one character
    ("abc", "", math.exp(-2)),
]


@pytest.mark.parametrize(("first", "second", "reward"), CASES)
def test_the_reward_falls_with_the_distance_from_two_to_three(
    first: str, second: str, reward: float
) -> None:
    assert length_ratio_reward([first], [second]) == [pytest.approx(reward)]


def test_a_batch_is_scored_pair_by_pair() -> None:
    first, second, rewards = zip(*CASES, strict=True)
    assert length_ratio_reward(list(first), list(second)) == pytest.approx(list(rewards))


def test_the_feedback_tells_each_agent_the_task_its_length_the_ratio_and_the_goal() -> None:
    prompts = length_feedback("Design it:", ["abc", "abcd"], num_agents=2)
    assert len(prompts) == 2
    for prompt, length in zip(prompts, (3, 4), strict=True):
        assert prompt.startswith("Design it:\n")
        assert f"had {length} characters" in prompt
        assert "1.3 times" in prompt
        assert "2 to 3 times" in prompt
