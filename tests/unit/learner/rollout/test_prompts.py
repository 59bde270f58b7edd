"""What agents are asked over the turns of a tree: the ids that engines get, what user code sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.models import tiny_tokenizer

from antiphon.clients.types import (
    ChatMessage,
    Completion,
    FieldError,
    FinishReason,
    JointAction,
    NextPrompts,
    PromptSamples,
    Score,
    ScoredJointAction,
    Task,
    TokenIds,
    TransitionResult,
    WeightsSpan,
)
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.data.formatters import Prompts
from antiphon.learner.data.tasks import Row
from antiphon.learner.record.stages import StageClock
from antiphon.learner.rollout.centralized import Centralized, CentralizedPrompts, TaggedAdapter
from antiphon.learner.rollout.prompt_encoding import PromptEncoder, prompt_encoders
from antiphon.learner.rollout.prompts import TokenizedPrompts
from antiphon.learner.rollout.rollout import Rollout, RolloutShape
from antiphon.learner.rollout.tree import AgentPrompt, Node

CHAT = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} <|turn|> {% endfor %}" + (
    "{% if add_generation_prompt %}assistant{% endif %}"
)
WORDS = ("user", "assistant", "system", "red", "green", "again", "one", "two")


class Speaker:
    """Answers with one word per sample, then the end token."""

    context_length = 1000

    def __init__(self, words: Sequence[int], end: int) -> None:
        self.words, self.end = words, end
        self.asked: list[tuple[int, ...]] = []

    async def generate(
        self, prompts: Sequence[PromptSamples], deliver: Callable[[Completion], None]
    ) -> None:
        for index, prompt in enumerate(prompts):
            assert isinstance(prompt.prompt, TokenIds)
            self.asked.append(prompt.prompt.ids)
            for sample in range(len(prompt.seeds)):
                deliver(answered(index, sample, (self.words[sample], self.end), prompt.prompt.ids))


def answered(index: int, sample: int, ids: tuple[int, ...], prompt: tuple[int, ...]) -> Completion:
    return Completion(
        prompt_index=index,
        sample_index=sample,
        text=f"said {sample}",
        token_ids=ids,
        logprobs=(-0.5,) * len(ids),
        kept_sizes=(3,) * len(ids),
        finish_reason=FinishReason.END_TOKEN,
        prompt_token_ids=prompt,
        weights_spans=(WeightsSpan(0, 1),),
        instance_id="i",
        boot_id="b",
    )


class Judge:
    def __init__(self) -> None:
        self.seen: list[JointAction] = []

    async def score(
        self, task: Task, joint_actions: Sequence[JointAction]
    ) -> list[tuple[Score, float | None]]:
        self.seen += joint_actions
        return [(Score(action.id, 0.0), 0.0) for action in joint_actions]


class Coach:
    """Says "again" to agent 0 as a text, to the others as a message."""

    async def transition(
        self, task: Task, scored: Sequence[ScoredJointAction]
    ) -> list[TransitionResult]:
        prompts = NextPrompts(("again", (ChatMessage("user", "again"),)))
        return [TransitionResult(one.joint_action.id, prompts) for one in scored]


async def at_once(function: Callable[[], Any], what: str) -> Any:
    return function()


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    made = tiny_tokenizer(tmp_path, words=WORDS)
    made.chat_template = CHAT
    return made


async def grown(tokenizer: Any, **settings: Any) -> tuple[Node, list[Speaker], Judge]:
    """A tree of two agents, two samples, three turns."""
    config = MAGRPOConfig(apply_chat_template=True, **settings)
    end, one, two = tokenizer.convert_tokens_to_ids(["<|turn|>", "one", "two"])
    speakers, judge = [Speaker((one, two), end) for _ in range(2)], Judge()
    rollout = Rollout(
        RolloutShape(2, 2, 3, "aligned", None, 8),
        generators=speakers,
        scorer=judge,
        transitioner=Coach(),
        prompts=TokenizedPrompts(
            Prompts(None, 2), prompt_encoders(config, [tokenizer, tokenizer]), at_once
        ),
        seed_of=lambda *, epoch, row, path, agent, sample: 1,
        clock=StageClock(),
    )
    (root,) = (await rollout.grow(1, [Row(0, Task("row-0", {"prompt": "red"}))])).roots
    return root, speakers, judge


def ids(tokenizer: Any, words: str) -> tuple[int, ...]:
    return tuple(tokenizer.convert_tokens_to_ids(words.split()))


async def test_an_appended_conversation_begins_with_all_that_came_before(tokenizer: Any) -> None:
    root, speakers, _ = await grown(tokenizer, conversation="append")
    nodes = {node.path: node for node in root.walk()}
    assert len(nodes) == 1 + 2 + 4
    for path, node in nodes.items():
        for agent in range(2) if path else ():
            before = nodes[path[:-1]]
            said = before.completions[agent][path[-1]].token_ids
            prefix = before.prompts[agent].token_ids + said
            assert node.prompts[agent].token_ids[: len(prefix)] == prefix
    deepest = "user red <|turn|> assistant two <|turn|> user again <|turn|> assistant one <|turn|>"
    assert nodes[1, 0].prompts[0].token_ids == ids(
        tokenizer, f"{deepest} user again <|turn|> assistant"
    )
    sent = [node.prompts[0].token_ids for node in nodes.values()]
    assert sorted(speakers[0].asked) == sorted(sent)


async def test_a_replaced_prompt_stands_alone(tokenizer: Any) -> None:
    root, _, _ = await grown(tokenizer)
    for node in root.walk():
        word = "red" if node.turn == 1 else "again"
        for prompt in node.prompts:
            assert prompt.token_ids == ids(tokenizer, f"user {word} <|turn|> assistant")


@pytest.mark.parametrize("conversation", ["replace", "append"])
async def test_user_code_sees_each_turns_prompt_as_it_was_written(
    tokenizer: Any, conversation: str
) -> None:
    _, _, judge = await grown(tokenizer, conversation=conversation, system_prompt="green")
    last = judge.seen[-1]
    assert [action.prompt for action in last.actions] == ["again", (ChatMessage("user", "again"),)]
    assert [turn[0].prompt for turn in last.history] == ["red", "again"]


async def test_a_chat_that_no_template_takes_fails_at_the_first_prompt(tokenizer: Any) -> None:
    tokenizer.chat_template = None
    config = MAGRPOConfig()
    writer = TokenizedPrompts(Prompts(None, 1), prompt_encoders(config, [tokenizer]), at_once)
    chat = [{"role": "user", "content": "red"}]
    with pytest.raises(FieldError, match="no chat template"):
        await writer.first(Task("row-0", {"prompt": chat}))


async def test_a_joint_prompt_can_be_a_conversation_too(tokenizer: Any) -> None:
    """Each role's prompt may be a chat; the joint one goes on after the joint answer."""

    class Adapter(TaggedAdapter):
        def build_prompt(self, batch_item: dict[str, Any], agent_prompts: Sequence[Any]) -> str:
            return " ".join(
                text if isinstance(text, str) else text[-1]["content"] for text in agent_prompts
            )

    config = MAGRPOConfig(apply_chat_template=True, conversation="append")
    writer = CentralizedPrompts(
        Centralized(Adapter(), Prompts(None, 2), 2), PromptEncoder(config, 0, tokenizer), at_once
    )
    task = Task("row-0", {"prompt": "red"})
    first = await writer.first(task)
    assert first[0].token_ids == ids(tokenizer, "user red red <|turn|> assistant")
    end, two = tokenizer.convert_tokens_to_ids(["<|turn|>", "two"])
    node = Node(task, 0, (), 1, first, ((answered(0, 0, (two, end), ()),),))
    green = (ChatMessage("user", "green"),)
    (second,) = await writer.following(node, (0,), ("again", green))
    assert second == AgentPrompt(
        "again green",
        first[0].token_ids + ids(tokenizer, "two <|turn|> user again green <|turn|> assistant"),
        roles=("again", green),
        chat=True,
    )
