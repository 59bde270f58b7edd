"""A transition function behind `TransitionService`, in this process and as one of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.support.processes import Processes, command, run

from antiphon.clients.errors import CallError
from antiphon.clients.transition import TransitionClient
from antiphon.clients.types import (
    AgentAction,
    BranchEnd,
    JointAction,
    NextPrompts,
    Phase,
    Score,
    ScoredJointAction,
    Task,
    TransitionResult,
)
from antiphon.services.common.hosting import Host
from antiphon.services.common.main_thread import MainThread
from antiphon.services.common.server import ServerSettings
from antiphon.services.common.user_functions import TransitionFunction
from antiphon.services.transition import END, transition_server

T = TypeVar("T")
TASK = Task("t", {"prompt": "a task"})


def scored(*first: str) -> list[ScoredJointAction]:
    """One for each text, by id "j-<text>", with the score 1."""
    return [
        ScoredJointAction(
            JointAction(
                f"j-{text}",
                "t",
                1,
                Phase.TRAIN,
                1,
                (AgentAction("p", text), AgentAction("p", "b")),
            ),
            Score(f"j-{text}", 1.0, info={"hint": text}),
        )
        for text in first
    ]


async def ask(address: str, *first: str) -> list[TransitionResult]:
    async with TransitionClient(address) as client:
        return list(
            await client.transition("run", [TASK], scored(*first), num_agents=2, timeout=60)
        )


def serve(fn: Callable[..., Any], scenario: Callable[[str], Awaitable[T]]) -> T:
    """Serves `fn` on this thread while `scenario(address)` runs on the event loop's."""
    main = MainThread(stuck_seconds=60)

    async def serving() -> T:
        host = Host(main, lambda _: None)
        server = transition_server(ServerSettings(), TransitionFunction(fn), host)
        await server.start()
        try:
            return await scenario(server.address)
        finally:
            await server.stop(0)

    return main.serve(serving)


def test_each_branch_gets_its_own_prompts_or_its_end() -> None:
    def again(prompt: str, agent_completions: list[str], info: Any, score: float) -> Any:
        if agent_completions[0] == "done":
            return END("solved")
        return [f"{prompt} {info['hint']} {score}", [{"role": "user", "content": "go on"}]]

    results = serve(again, lambda address: ask(address, "x", "done", "yy"))
    assert [result.joint_action_id for result in results] == ["j-x", "j-done", "j-yy"]
    assert results[1].outcome == BranchEnd("solved")
    first = results[0].outcome
    assert isinstance(first, NextPrompts)
    assert first.prompts[0] == "a task x 1.0"
    assert isinstance(results[2].outcome, NextPrompts)
    assert results[2].outcome.prompts[0] == "a task yy 1.0"


def test_a_branchs_history_is_not_changed_by_its_siblings() -> None:
    """U4"""
    lengths: list[int] = []

    def again(response_history_per_agent: Any, batch_item: Any) -> list[str]:
        lengths.append(len(response_history_per_agent[0]) + len(batch_item))
        response_history_per_agent[0].append("mine")
        batch_item["mine"] = 1
        return ["x", "y"]

    serve(again, lambda address: ask(address, "a", "b", "c"))
    assert lengths == [2, 2, 2]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (["only one"], "returned 1 prompts, wanted 2"),
        (["x", ""], "an empty prompt for agent 1"),
        ([None, "x"], "NoneType None for agent 0"),
        (None, "wanted a list of 2 prompts"),
    ],
)
def test_a_wrong_answer_is_an_error_that_says_whose(result: Any, message: str) -> None:
    """U5"""

    async def scenario(address: str) -> CallError:
        with pytest.raises(CallError) as raised:
            await ask(address, "a")
        return raised.value

    error = serve(lambda prompt: result, scenario)
    assert error.reason == "USER_FUNCTION_FAILED"
    assert error.metadata["joint_action_ids"] == "j-a"
    assert message in error.message
    assert not error.transient


async def test_a_function_of_the_current_directory_is_served_until_sigterm(
    processes: Processes, tmp_path: Path
) -> None:
    (tmp_path / "my_feedback.py").write_text(
        "def again(agent_completions, num_agents):\n"
        "    return [f'longer than {len(text)}' for text in agent_completions]\n"
    )
    service = processes.serve("transition", "transition", "my_feedback:again")
    (result,) = await ask(service.address(), "abc")
    assert result.outcome == NextPrompts(("longer than 3", "longer than 1"))
    assert service.terminate() == 0


def test_help_teaches_by_example() -> None:
    shown = run(command("serve", "transition", "--help"))
    assert "antiphon serve transition feedback:again --port 50062" in shown
    assert 'return END("nothing left to improve")' in shown
