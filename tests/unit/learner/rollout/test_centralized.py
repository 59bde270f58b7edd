"""Joining the roles' prompts and splitting the joint answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.trees import make_node

from antiphon.clients.types import FieldError
from antiphon.learner.data.formatters import Prompts
from antiphon.learner.rollout.centralized import (
    Centralized,
    CentralizedParseError,
    Split,
    SplitActions,
    TaggedAdapter,
)


def made(adapter: Any, roles: int = 2) -> Centralized:
    return Centralized(adapter, Prompts(lambda item: f"do {item['prompt']}", roles), roles)


def test_tags_part_the_answer() -> None:
    adapter = TaggedAdapter()
    text = "so <agent_1> two\nlines </agent_1> and <agent_0>one</agent_0><agent_0>more</agent_0>"
    assert adapter.parse_completion(text, {}, 2) == ["one", "two\nlines"]
    assert adapter.parse_completion("<agent_1>x</agent_1>", {}, 3) == ["", "x", ""]
    assert adapter.parse_completion("<agent_1>x</agent_1><agent_10>y</agent_10>", {}, 11)[10] == "y"


@pytest.mark.parametrize("text", ["", "one and two", "<agent_0>unfinished", "<agent_2>x</agent_2>"])
def test_an_answer_without_any_part_is_as_many_empty_ones(text: str) -> None:
    """The reward judges them as it judges every answer; nothing is invented or dropped."""
    with pytest.raises(CentralizedParseError, match="no <agent_0> to <agent_1> in it"):
        TaggedAdapter().parse_completion(text, {}, 2)
    assert made(TaggedAdapter()).split(text, {}) == Split(("", ""), whole=False)


def test_the_joint_prompt_holds_every_roles_prompt_and_the_form_of_the_answer() -> None:
    joint, roles = made(TaggedAdapter()).first({"prompt": "sing"})
    assert roles == ("do sing", "do sing")
    for part in ("do sing", "<agent_0>", "</agent_0>", "<agent_1>", "</agent_1>"):
        assert part in joint
    assert "agent_2" not in joint


def test_later_prompts_are_joined_of_what_the_transition_wrote() -> None:
    joint, roles = made(TaggedAdapter()).later({"prompt": "sing"}, ["louder", "softer"])
    assert roles == ("do louder", "do softer")
    assert joint.index("do louder") < joint.index("do softer")


class Returns:
    """An adapter that gives what it is told."""

    def __init__(self, joint: Any, parts: Any) -> None:
        self.joint, self.parts = joint, parts

    def build_prompt(self, batch_item: dict[str, Any], agent_prompts: Sequence[str]) -> Any:
        batch_item["prompt"] = "changed"
        return self.joint

    def parse_completion(self, completion: str, batch_item: dict[str, Any], num_agents: int) -> Any:
        batch_item["prompt"] = "changed"
        return self.parts


@pytest.mark.parametrize("parts", ["ab", ["a"], ["a", "b", "c"], ["a", None], None, 3])
def test_parts_of_another_kind_or_number_are_an_error_that_names_the_adapter(parts: Any) -> None:
    with pytest.raises(FieldError, match=r"Returns.parse_completion.*wanted a list of 2 texts"):
        made(Returns("j", parts)).split("x", {})


@pytest.mark.parametrize("joint", ["", "  ", None, 3])
def test_a_joint_prompt_that_is_none_is_an_error_that_names_the_adapter(joint: Any) -> None:
    with pytest.raises(FieldError, match=r"Returns.build_prompt returned"):
        made(Returns(joint, [])).first({"prompt": "sing"})


def test_an_adapter_gets_copies_of_the_row() -> None:
    item = {"prompt": "sing"}
    centralized = made(Returns("joint", ["a", "b"]))
    centralized.first(item)
    assert centralized.split("x", item) == Split(("a", "b"), whole=True)
    assert item == {"prompt": "sing"}


def test_what_is_no_adapter_is_refused_with_its_lack() -> None:
    with pytest.raises(FieldError, match=r"centralized_adapter: got object without build_prompt"):
        made(object())


async def test_a_nodes_completions_become_the_roles_actions_and_what_failed_is_counted() -> None:
    node = make_node([0.0, 0.0], num_agents=1)
    texts = ("<agent_0>one</agent_0><agent_1>two</agent_1>", "nothing")
    node.completions = (
        tuple(replace(c, text=t) for c, t in zip(node.completions[0], texts, strict=True)),
    )
    node.prompts = (replace(node.prompts[0], roles=("ask 0", "ask 1")),)

    async def inline(function: Callable[[], Any], what: str) -> Any:
        return function()

    actions = await SplitActions(made(TaggedAdapter()), inline).actions(node)
    assert [[(a.prompt, a.completion) for a in one] for one in actions] == [
        [("ask 0", "one"), ("ask 1", "two")],
        [("ask 0", ""), ("ask 1", "")],
    ]
    assert node.unsplit == 1
