"""One model writes the joint answer; an adapter splits it into the roles' completions.

At a node the model is asked one joint prompt, made by the adapter of the roles' prompts, and gives
G completions. Each is split into one text per role, and the roles' texts are what reward and
transition see: a joint action of N roles, as if N agents had answered. The group that is trained on
is the model's G completions with the joint returns. A text that cannot be split counts as N empty
ones, which the reward judges as it judges every answer; such texts are counted.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from antiphon.clients.types import AgentAction, Chat, FieldError, Task
from antiphon.learner.data.chats import WrittenPrompt, read_prompt, shown
from antiphon.learner.data.formatters import Prompts
from antiphon.learner.rollout.prompt_encoding import PromptEncoder
from antiphon.learner.rollout.prompts import followed
from antiphon.learner.rollout.scoring import OnMainThread
from antiphon.learner.rollout.tree import AgentPrompt, Node
from antiphon.services.common.user_function import plain_prompt

T = TypeVar("T")
Joined = tuple[str | Chat, tuple[str | Chat, ...]]
"""A joint prompt, and the roles' prompts that it is made of."""


class CentralizedParseError(ValueError):
    """A joint completion cannot be split; raised by an adapter's `parse_completion`."""


class CentralizedAdapter(Protocol):
    """Joins the roles' prompts, and splits what the model answers. Runs on the main thread."""

    def build_prompt(
        self, batch_item: dict[str, Any], agent_prompts: Sequence[WrittenPrompt]
    ) -> WrittenPrompt:
        """The joint prompt, from the dataset's row (a copy) and each role's prompt [N].

        Prompts are texts or lists of chat messages, here and in what is returned.
        """
        ...

    def parse_completion(
        self, completion: str, batch_item: dict[str, Any], num_agents: int
    ) -> Sequence[str]:
        """Each role's text [N].

        Raises:
            CentralizedParseError: The completion cannot be split.
        """
        ...


class TaggedAdapter:
    """Asks for a part per role between tags, `<agent_0>` to `</agent_0>` and so on.

    A role whose part is missing has answered nothing (""); a completion without any part cannot be
    split. Of several parts of one role the first counts.
    """

    def build_prompt(
        self,
        batch_item: dict[str, Any],  # noqa: ARG002
        agent_prompts: Sequence[WrittenPrompt],
    ) -> str:
        """The roles' prompts one after the other, then the form of the answer.

        Of chat messages the contents are shown.
        """
        asked = [
            f"What agent {role} is asked:\n{shown(prompt)}"
            for role, prompt in enumerate(agent_prompts)
        ]
        form = "\n".join(
            f"<agent_{role}>answer of agent {role}</agent_{role}>"
            for role in range(len(agent_prompts))
        )
        return "\n\n".join(
            [
                f"You answer for {len(agent_prompts)} agents at once, each by itself.",
                *asked,
                f"Write every agent's answer between its tags and nothing else:\n{form}\n",
            ]
        )

    def parse_completion(
        self,
        completion: str,
        batch_item: dict[str, Any],  # noqa: ARG002
        num_agents: int,
    ) -> list[str]:
        """The text between each role's tags, without blanks around it.

        Raises:
            CentralizedParseError: There is no part of any role.
        """
        parts = [
            re.search(rf"<agent_{role}>(.*?)</agent_{role}>", completion, re.DOTALL)
            for role in range(num_agents)
        ]
        if not any(parts):
            raise CentralizedParseError(f"no <agent_0> to <agent_{num_agents - 1}> in it")
        return ["" if part is None else part.group(1).strip() for part in parts]


@dataclass(frozen=True)
class Split:
    """The roles' texts of one completion [N], and whether it could be split."""

    texts: tuple[str, ...]
    whole: bool


class Centralized:
    """An adapter with the roles' formatters. Its methods run user code.

    Args:
        adapter: The user's adapter.
        prompts: Writes each role's prompt.
        num_roles: N.

    Raises:
        FieldError: The adapter lacks a method.

    Attributes:
        name: What the adapter is called.
    """

    def __init__(self, adapter: CentralizedAdapter, prompts: Prompts, num_roles: int) -> None:
        for name in ("build_prompt", "parse_completion"):
            if not callable(getattr(adapter, name, None)):
                raise FieldError(
                    "centralized_adapter",
                    f"{type(adapter).__name__} without {name}",
                    "an object with build_prompt(batch_item, agent_prompts) and "
                    "parse_completion(completion, batch_item, num_agents), such as TaggedAdapter()",
                )
        self._adapter = adapter
        self._prompts = prompts
        self.name = type(adapter).__name__
        self.num_roles = num_roles

    def first(self, item: Mapping[str, Any]) -> Joined:
        """The joint prompt of turn 1 and the roles' prompts that it is made of."""
        return self._joined(item, lambda role: self._prompts.first(role, item))

    def later(self, item: Mapping[str, Any], prompts: Sequence[str | Chat]) -> Joined:
        """The same for a later turn, from the prompts that the transition wrote for the roles."""
        return self._joined(item, lambda role: self._prompts.later(role, item, prompts[role]))

    def split(self, completion: str, item: Mapping[str, Any]) -> Split:
        """The roles' texts of a completion.

        Raises:
            FieldError: The adapter gave something else than one text per role.
        """
        try:
            texts = self._adapter.parse_completion(
                completion, copy.deepcopy(dict(item)), self.num_roles
            )
        except CentralizedParseError:
            return Split(("",) * self.num_roles, whole=False)
        where = f"centralized_adapter: what {self.name}.parse_completion returned"
        wanted = f"a list of {self.num_roles} texts, one per role"
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Sequence):
            raise FieldError(where, f"{type(texts).__name__} {texts!r:.80}", wanted)
        if len(texts) != self.num_roles or not all(isinstance(text, str) for text in texts):
            raise FieldError(where, f"{list(texts)!r:.80}", wanted)
        return Split(tuple(texts), whole=True)

    def _joined(self, item: Mapping[str, Any], write: Callable[[int], str | Chat]) -> Joined:
        roles = tuple(write(role) for role in range(self.num_roles))
        joint = self._adapter.build_prompt(
            copy.deepcopy(dict(item)), [plain_prompt(role) for role in roles]
        )
        where = f"centralized_adapter: what {self.name}.build_prompt returned"
        return read_prompt(where, joint), roles


class CentralizedPrompts:
    """Writes and tokenises the joint prompt, the only agent's.

    Args:
        centralized: Joins the roles' prompts.
        encoder: The model's.
        on_main_thread: Runs user code.
    """

    def __init__(
        self, centralized: Centralized, encoder: PromptEncoder, on_main_thread: OnMainThread
    ) -> None:
        self._centralized = centralized
        self._encoder = encoder
        self._on_main_thread = on_main_thread

    async def first(self, task: Task) -> tuple[AgentPrompt, ...]:
        """The joint prompt of turn 1."""
        joint, roles = await self._written(lambda: self._centralized.first(task.item))
        return (replace(self._encoder.encode(joint), roles=roles),)

    async def following(
        self, node: Node, samples: Sequence[int], prompts: Sequence[str | Chat]
    ) -> tuple[AgentPrompt, ...]:
        """The joint prompt of a later turn, from the roles' that the transition wrote."""
        joint, roles = await self._written(lambda: self._centralized.later(node.task.item, prompts))
        return (replace(followed(self._encoder, node, 0, samples[0], joint), roles=roles),)

    async def _written(self, write: Callable[[], Joined]) -> Joined:
        joined: Joined = await self._on_main_thread(write, "formatters and centralized_adapter")
        return joined


class SplitActions:
    """Makes of a node's completions the roles' actions, as reward and transition see them.

    Args:
        centralized: Splits completions.
        on_main_thread: Runs user code.
    """

    def __init__(self, centralized: Centralized, on_main_thread: OnMainThread) -> None:
        self._centralized = centralized
        self._on_main_thread = on_main_thread

    async def actions(self, node: Node) -> list[tuple[AgentAction, ...]]:
        """One action per role of every joint action of a node, which learns how they were split."""
        texts = [completion.text for completion in node.completions[0]]
        splits: list[Split] = await self._on_main_thread(
            lambda: [self._centralized.split(text, node.task.item) for text in texts],
            "centralized_adapter",
        )
        node.unsplit = sum(not split.whole for split in splits)
        asked = node.prompts[0].roles
        return [
            tuple(
                AgentAction(prompt, text) for prompt, text in zip(asked, split.texts, strict=True)
            )
            for split in splits
        ]
