"""A reward function behind `RewardService`, asked over gRPC from another thread of its process."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from antiphon.clients.endpoint import open_channel
from antiphon.clients.errors import CallError
from antiphon.clients.reward import RewardClient
from antiphon.clients.types import AgentAction, JointAction, Phase, Task
from antiphon.clients.wire import score_request_to_proto
from antiphon.services.common.errors import UserFunctionTimeoutError
from antiphon.services.common.hosting import Host
from antiphon.services.common.main_thread import MainThread
from antiphon.services.common.server import ServerSettings
from antiphon.services.common.user_functions import RewardFunction
from antiphon.services.reward import reward_server
from antiphon.v1 import reward_pb2, reward_pb2_grpc

T = TypeVar("T")
TASK = Task("t", {"prompt": "a task"})


def joint_actions(*first: str) -> list[JointAction]:
    """One for each text, by id "j-<text>"."""
    return [
        JointAction(
            f"j-{text}",
            "t",
            1,
            Phase.TRAIN,
            1,
            (AgentAction("p", text), AgentAction("p", "b")),
        )
        for text in first
    ]


def serve(
    fn: Callable[..., Any],
    scenario: Callable[[str], Awaitable[T]],
    *,
    batch_size: int = 1,
    max_batch_size: int | None = None,
    call_timeout: float | None = None,
    on_hung: Callable[[UserFunctionTimeoutError], None] = lambda _: None,
) -> T:
    """Serves `fn` on this thread while `scenario(address)` runs on the event loop's."""
    main = MainThread(stuck_seconds=60)

    async def run() -> T:
        server = reward_server(
            ServerSettings(),
            RewardFunction(fn, batch_size=batch_size),
            Host(main, on_hung),
            call_timeout=call_timeout,
            max_batch_size=max_batch_size,
        )
        await server.start()
        try:
            return await scenario(server.address)
        finally:
            await server.stop(0)

    return main.serve(run)


async def scores_of(address: str, actions: Sequence[JointAction]) -> list[Any]:
    async with RewardClient(address) as client:
        return list(await client.score("run", [TASK], actions, timeout=60))


def test_each_score_goes_with_its_own_id_whatever_the_order() -> None:
    """S9: nothing is answered by position."""

    def length(a: list[str], b: list[str]) -> list[float]:
        return [float(len(text)) for text in a]

    async def scenario(address: str) -> dict[str, float]:
        async with open_channel(address) as channel:
            stub = reward_pb2_grpc.RewardServiceStub(channel)
            request = score_request_to_proto("run", [TASK], joint_actions("xxx", "x", "", "xx"))
            answer = await stub.Score(request, timeout=60)
        return {score.joint_action_id: score.value for score in answer.scores}

    expected = {"j-xxx": 3.0, "j-x": 1.0, "j-": 0.0, "j-xx": 2.0}
    assert serve(length, scenario) == expected
    assert serve(length, scenario, batch_size=3) == expected


@pytest.mark.parametrize(
    ("break_it", "field"),
    [
        (lambda r: r.joint_actions.append(r.joint_actions[0]), "joint_actions"),
        (lambda r: r.tasks.append(r.tasks[0]), "tasks"),
        (lambda r: r.ClearField("tasks"), "joint_actions[0].task_id"),
        (lambda r: r.ClearField("joint_actions"), "joint_actions"),
        (lambda r: r.joint_actions[0].ClearField("id"), "joint_actions[0].id"),
    ],
    ids=["doubled id", "doubled task", "unknown task", "nothing asked", "no id"],
)
def test_a_request_that_breaks_the_contract_is_refused_by_field(
    break_it: Callable[[Any], object], field: str
) -> None:
    """S9: and the function is not called."""
    called: list[str] = []

    def reward(a: list[str], b: list[str]) -> list[float]:
        called.append("x")
        return [0.0]

    async def scenario(address: str) -> grpc.aio.AioRpcError:
        request = score_request_to_proto("run", [TASK], joint_actions("a"))
        break_it(request)
        async with open_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await reward_pb2_grpc.RewardServiceStub(channel).Score(request, timeout=60)
        return raised.value

    error = serve(reward, scenario)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in (error.details() or "")
    assert called == []


ITEM = {
    "prompt": "a task",
    "nested": {"answers": [1, None, {"deep": [True, 0.1, "\u00e9\U0001f600"]}], "empty": []},
    "large": 2**80,
    "none": None,
}


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b, batch_items=None: told(a, b, items=batch_items),
        lambda a, b, *, batch_items: told(a, b, items=batch_items),
        lambda batch_items, a, b: told(a, b, items=batch_items),
        lambda prompts, a, b: told(a, b, prompts=prompts),
        lambda a, b, alpha=0.5: told(a, b, alpha=alpha),
        lambda a, b, alpha=0.5, *, phases, turns: told(a, b, phases=phases, turns=turns),
    ],
    ids=["option", "keyword", "first", "prompts", "unknown option", "several"],
)
def test_what_a_function_names_comes_under_that_name(fn: Callable[..., list[float]]) -> None:
    """U1, U9: whatever stands where, and a row arrives equal."""

    async def scenario(address: str) -> list[Any]:
        async with RewardClient(address) as client:
            task = Task("t", ITEM)
            return list(await client.score("run", [task], joint_actions("xxx", "x"), timeout=60))

    assert [score.value for score in serve(fn, scenario, batch_size=2)] == [3.0, 1.0]


def told(a: list[str], b: list[str], **named: Any) -> list[float]:
    """Scores that say how long `a` is; AssertionError where anything came under another name."""
    expected = {
        "items": [ITEM] * 2,
        "prompts": ["p"] * 2,
        "alpha": 0.5,
        "phases": ["train"] * 2,
        "turns": [1] * 2,
    }
    assert b == ["b", "b"]
    assert named == {name: expected[name] for name in named}
    return [float(len(text)) for text in a]


def test_a_function_may_use_alarms() -> None:
    """U6: it runs on the main thread, where signal handlers run; nothing is scored 0."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    def reward(a: list[str], b: list[str]) -> list[float]:
        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        try:
            threading.Event().wait(60)
        except TimeoutError:
            return [7.0]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        return [0.0]

    (score,) = serve(reward, lambda address: scores_of(address, joint_actions("x")))
    assert score.value == 7.0


def test_an_exception_is_the_calls_error_with_the_users_traceback() -> None:
    """U2: called once, never tried with other arguments or again."""
    called: list[str] = []

    def reward(a: list[str], b: list[str]) -> list[float]:
        called.append(a[0])
        raise TypeError("unsupported operand")

    async def scenario(address: str) -> CallError:
        with pytest.raises(CallError) as raised:
            await scores_of(address, joint_actions("a"))
        return raised.value

    error = serve(reward, scenario)
    assert called == ["a"]
    assert error.reason == "USER_FUNCTION_FAILED"
    assert error.metadata["joint_action_ids"] == "j-a"
    assert error.metadata["function"].endswith("reward")
    assert not error.transient
    assert "TypeError: unsupported operand" in error.message
    assert 'raise TypeError("unsupported operand")' in error.message


def test_a_fault_of_one_item_leaves_the_others_their_scores() -> None:
    """L6, S8"""

    def reward(a: list[str], b: list[str]) -> list[float | None]:
        return [{"none": None, "nan": float("nan")}.get(text, 1.0) for text in a]

    async def scenario(address: str) -> list[Any]:
        return await scores_of(address, joint_actions("x", "none", "nan", "y"))

    for batch_size in (1, 4):
        scores = serve(reward, scenario, batch_size=batch_size)
        assert [score.value for score in scores] == [1.0, None, None, 1.0]
        assert [bool(score.missing_reason) for score in scores] == [False, True, True, False]


def test_a_wrong_result_names_function_got_and_wanted() -> None:
    """U3"""

    async def scenario(address: str) -> str:
        with pytest.raises(CallError) as raised:
            await scores_of(address, joint_actions("x", "y"))
        return raised.value.message

    message = serve(lambda a, b: 0.5, scenario, batch_size=2)
    assert "<lambda> for joint action j-x, j-y: returned float 0.5" in message
    assert "wanted a sequence of 2" in message


def test_the_function_runs_on_this_thread_and_sees_this_scripts_closures() -> None:
    seen: list[threading.Thread] = []

    def reward(a: list[str], b: list[str]) -> list[float]:
        seen.append(threading.current_thread())
        return [0.0]

    serve(reward, lambda address: scores_of(address, joint_actions("x", "y")))
    assert seen == [threading.main_thread()] * 2


def test_health_answers_while_the_function_is_held() -> None:
    """S15"""
    begun, release = threading.Event(), threading.Event()

    def reward(a: list[str], b: list[str]) -> list[float]:
        begun.set()
        assert release.wait(60)
        return [1.0]

    async def scenario(address: str) -> int:
        call = asyncio.create_task(scores_of(address, joint_actions("x")))
        await asyncio.to_thread(begun.wait, 60)
        async with open_channel(address) as channel:
            request = health_pb2.HealthCheckRequest(service="antiphon.v1.RewardService")
            answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=20)
        assert not call.done()
        release.set()
        assert (await call)[0].value == 1.0
        return int(answer.status)

    assert serve(reward, scenario) == health_pb2.HealthCheckResponse.SERVING


def test_a_function_that_never_returns_fails_by_name_and_its_process_is_told() -> None:
    """U7"""
    told: list[UserFunctionTimeoutError] = []

    def reward(a: list[str], b: list[str]) -> list[float]:
        threading.Event().wait()
        return [1.0]

    async def scenario(address: str) -> CallError:
        with pytest.raises(CallError) as raised:
            await scores_of(address, joint_actions("x"))
        return raised.value

    error = serve(reward, scenario, call_timeout=0.05, on_hung=told.append)
    assert error.reason == "USER_FUNCTION_FAILED"
    assert "reward for joint action j-x: did not return within 0.05 s" in error.message
    assert [hung.joint_action_ids for hung in told] == [("j-x",)]


def test_a_call_whose_caller_is_gone_does_not_begin() -> None:
    begun, release, second = threading.Event(), threading.Event(), threading.Event()
    called: list[str] = []

    def reward(a: list[str], b: list[str]) -> list[float]:
        called.append(a[0])
        begun.set()
        assert release.wait(60)
        return [1.0]

    async def scenario(address: str) -> None:
        first = asyncio.create_task(scores_of(address, joint_actions("first")))
        await asyncio.to_thread(begun.wait, 60)
        async with open_channel(address) as channel:
            stub = reward_pb2_grpc.RewardServiceStub(channel)
            request = score_request_to_proto("run", [TASK], joint_actions("late"))
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.Score(request, timeout=0.2)
            assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            # On the same connection, so the server hears of the late call's end before this.
            await stub.GetRewardInfo(reward_pb2.GetRewardInfoRequest(), timeout=20)
        release.set()
        await first
        await scores_of(address, joint_actions("last"))
        second.set()

    serve(reward, scenario)
    assert second.is_set()
    assert called == ["first", "last"]


def test_info_says_how_it_wants_to_be_called() -> None:
    async def scenario(address: str) -> Any:
        async with RewardClient(address) as client:
            return await client.get_info(timeout=20)

    info = serve(lambda a, b: [1.0], scenario, batch_size=4)
    assert (info.max_batch_size, info.max_concurrent_calls) == (4, 1)
    assert info.name.endswith("<lambda>")
    info = serve(lambda a, b: [1.0], scenario, batch_size=4, max_batch_size=0)
    assert (info.max_batch_size, info.max_concurrent_calls) == (0, 1)
