"""text-generation-inference behind the service: its limits, errors, restarts and crashes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from tests.integration.services.generation.engines.served import (
    greedy,
    launcher,
    named,
    on_running_tgi,
    on_tgi,
)
from tests.integration.services.generation.harness import TIMEOUT, push_of, refusal, replica
from tests.support.processes import Processes, wait_until
from tests.support.tgi.server import Control, TgiServer

from antiphon.clients.errors import CallError
from antiphon.clients.types import PushKind, TensorDtype, TokenIds
from antiphon.services.common.errors import StartError
from antiphon.services.generation.serving import GenerationOptions, load_engine

Folders = Callable[..., Path]
INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
def folder(tiny_folders: Folders) -> Path:
    return tiny_folders(seed=1, kind="bytes", add_bos=True, two_ends=True, head_size=32)


@pytest.fixture
def other(tiny_folders: Folders) -> Path:
    return tiny_folders(seed=2, kind="bytes", add_bos=True, two_ends=True, head_size=32)


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path / "control")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0.02)


async def test_token_ids_are_refused_and_the_model_info_says_so(
    folder: Path, control: Control
) -> None:
    async with on_running_tgi(folder, control) as served:
        info = await served.info()
        with pytest.raises(CallError) as caught:
            await served.generate(TokenIds((5, 6)))
    assert (info.engine, info.capabilities.token_ids) == ("tgi", False)
    assert caught.value.code is INVALID
    assert "takes text only" in caught.value.message


async def test_no_more_requests_are_under_way_than_the_server_takes(
    folder: Path, control: Control
) -> None:
    """S8: the bound of /info holds without a single refusal."""
    async with on_running_tgi(folder, control, max_concurrent_requests=3) as served:
        assert len(await served.generate("the", "in", samples=6)) == 12
    assert max(note["running"] for note in control.notes("request")) <= 3


async def test_an_overloaded_server_is_asked_again(folder: Path, control: Control) -> None:
    """S8: 429 is waited out, and every completion is there once."""
    async with on_running_tgi(folder, control) as served:
        control.ask("overloaded", 3)
        got = await served.generate("the", samples=3)
    assert [c.sample_index for c in got] == [0, 1, 2]
    assert control.left("overloaded") == 0


async def test_a_failed_generation_is_an_error_of_its_completion(
    folder: Path, control: Control
) -> None:
    """S8: 424 names it and its reason; the other completions arrive first."""
    async with on_running_tgi(folder, control) as served:
        control.ask("fail-generation")
        arrived: list[int] = []

        async def collect() -> None:
            async for completion in served.stream("the", sampling=named(), samples=4):
                arrived.append(completion.sample_index)

        with pytest.raises(CallError) as caught:
            await collect()
    assert len(arrived) == 3
    (missing,) = {0, 1, 2, 3} - set(arrived)
    assert caught.value.code is grpc.StatusCode.ABORTED
    assert f"prompts[0] sample {missing}" in caught.value.message
    assert "CUDA OOM" in caught.value.message


async def test_a_refused_request_comes_back_with_the_servers_reason(
    folder: Path, control: Control
) -> None:
    """S8: 422 is permanent. The server forgets its limits between /info and the request."""
    with TgiServer(folder, control) as tgi:
        async with replica(folder, engine="tgi", engine_address=tgi.url) as r:
            tgi.limits["max_total_tokens"] = 20
            with pytest.raises(CallError) as caught:
                await r.generate("the dragon", max_new_tokens=40)
    assert caught.value.code is INVALID
    assert "`inputs` tokens + `max_new_tokens` must be <= 20" in caught.value.message


async def test_the_servers_limits_are_those_of_the_service(folder: Path, control: Control) -> None:
    """L12: total tokens as the context; a prompt beyond the input limit is refused by number."""
    limits = {"max_total_tokens": 60, "max_input_tokens": 12}
    async with on_running_tgi(folder, control, **limits) as served:
        info = await served.info()
        assert (info.context_length, info.max_prompt_tokens) == (60, 12)
        for text in ("a" * 12, "a" * 60):
            with pytest.raises(CallError) as caught:
                await served.generate(text, sampling=named(max_new_tokens=1))
            assert caught.value.code is INVALID
    assert control.notes("request") == []


async def test_top_p_needs_a_top_k_that_the_server_tells_all_of(
    folder: Path, control: Control
) -> None:
    """L7: without it nobody knows which tokens were kept."""
    async with on_running_tgi(folder, control, max_top_n_tokens=5) as served:
        await served.generate("the", sampling=named(top_k=5, top_p=0.9))
        await served.generate("the", sampling=named(top_k=50))
        for top_k in (None, 6):
            with pytest.raises(CallError) as caught:
                await served.generate("the", sampling=named(top_k=top_k, top_p=0.9))
            assert caught.value.code is INVALID
            assert "--max-top-n-tokens" in caught.value.message


async def test_a_caller_that_leaves_has_its_requests_dropped(
    folder: Path, control: Control
) -> None:
    async with on_running_tgi(folder, control, max_concurrent_requests=2) as served:
        control.ask("hold")
        stream = served.stream("the", sampling=named(), samples=4)
        asking = asyncio.create_task(anext(stream))
        await until(lambda: len(control.notes("request")) == 2)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        await stream.aclose()
        await until(lambda: len(control.notes("dropped")) == 2)
        control.ask("hold", 0)
        assert len(await served.generate("the")) == 1


async def test_what_does_not_fit_is_refused_at_the_start(
    folder: Path, other: Path, tiny_folders: Folders, control: Control
) -> None:
    """A tokenizer of its own, nobody there, a command that names no model, one that serves another
    model than it is given, one that fails."""

    async def refusal_of(**options: object) -> str:
        asked = GenerationOptions(model=str(folder), engine="tgi", **options)  # type: ignore[arg-type]
        with pytest.raises(StartError) as caught:
            await asyncio.to_thread(load_engine, asked)
        return str(caught.value)

    with TgiServer(tiny_folders(seed=0), control) as tgi:
        assert "same tokenizer" in await refusal_of(engine_address=tgi.url)
    assert "nobody says at /health" in await refusal_of(engine_address=tgi.url)
    assert "either --engine-command" in await refusal_of()
    assert "{model}" in await refusal_of(engine_command="tgi --port {port}")
    deaf = launcher(control).replace("--model-id {model}", f"--model-id {other}")
    said = await refusal_of(engine_command=f"env GIVEN={{model}} {deaf}")
    assert f"serves '{other}', wanted" in said
    failing = "sh -c 'echo no space left; exit 3' {model} {port}"
    message = await refusal_of(engine_command=failing)
    assert "code 3" in message
    assert "no space left" in message


@pytest.mark.parametrize("restart", ["rolling", "stop-first"])
async def test_a_push_lets_completions_under_way_finish_on_the_old_weights(
    folder: Path, other: Path, control: Control, restart: str
) -> None:
    """S2: the version moves when the new server says that it serves it; a crash on load is tried
    again; folders that nobody serves are gone."""
    options = {"engine_command": launcher(control), "restart": restart}
    async with replica(folder, engine="tgi", weights_dtype=TensorDtype.FLOAT32, **options) as r:
        control.ask("hold")
        asking = asyncio.create_task(r.generate("the", max_new_tokens=12))
        await until(lambda: bool(control.notes("request")))
        control.ask("crash-on-load")
        pushing = asyncio.create_task(r.push(push_of(other, 1)))
        if restart == "rolling":
            await pushing
        else:
            work = Path(control.notes("load")[0]["model"]).parent
            await until(lambda: len(list(work.glob("version-*"))) == 2)
            assert (r.version, len(control.notes("load"))) == (0, 1)
        control.ask("hold", 0)
        old, result = await asking, await pushing
        new = await r.generate("the", version=1, max_new_tokens=12)
        ends = r.engine.info.end_token_ids
        served = [Path(note["model"]) for note in control.notes("load")]
        left = list(served[0].parent.iterdir())
    assert control.left("crash-on-load") == 0
    assert (old[0].weights_spans[0].weights_version, new[0].weights_spans[0].weights_version) == (
        0,
        1,
    )
    for completion, weights in ((old[0], folder), (new[0], other)):
        prompt = completion.prompt_token_ids
        assert completion.token_ids == greedy(weights, prompt, ends, 12)
    assert (result.pause_seconds > 0) == (restart == "stop-first")
    assert left == served[-1:]
    assert control.notes("broken") == []


async def test_weights_that_no_server_loads_leave_the_old_ones(
    folder: Path, other: Path, control: Control
) -> None:
    """S2: the push fails with the server's last words; what was served is served on."""
    async with on_tgi(folder, control) as served:
        control.ask("crash-on-load", 3)
        push = push_of(other, 1)
        with pytest.raises(CallError) as caught:
            await served.client.push_weights(push.header, push.read, timeout=TIMEOUT)
        info = await served.info()
        assert len(await served.generate("the")) == 1
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert "CUDA out of memory" in caught.value.message
    assert info.loaded.version == 0


async def test_a_server_that_dies_comes_back_and_no_completion_is_lost(
    folder: Path, control: Control
) -> None:
    """S3: what was under way is asked again of the new server, with the same seeds."""
    async with on_tgi(folder, control) as served:
        expected = await served.generate("the", "in", samples=3, sampling=named())
        control.ask("crash-on-generate")
        got = await served.generate("the", "in", samples=3, sampling=named())
    assert [c.token_ids for c in got] == [c.token_ids for c in expected]
    assert len(control.notes("load")) == 2


async def test_a_service_without_weights_knows_its_limits_and_samples_from_the_first_push_on(
    folder: Path, control: Control
) -> None:
    """S3: the server that waits has no weights to sample, and is gone before the next starts. One
    that says at first that it is not healthy is waited for."""
    command = launcher(control, max_input_tokens=12, max_total_tokens=60)
    options = {"engine_command": command, "weights": False, "weights_dtype": TensorDtype.FLOAT32}
    control.ask("unhealthy", 3)
    async with replica(folder, engine="tgi", **options) as r:
        assert control.left("unhealthy") == 0
        info = await r.client.get_model_info(TIMEOUT)
        with pytest.raises(CallError) as caught:
            await r.generate("the")
        result = await r.push(push_of(folder, 1))
        waiting, _ = control.notes("load")
        assert not alive(waiting["pid"])
        assert len(await r.generate("the", version=1)) == 1
    assert (info.context_length, info.max_prompt_tokens) == (60, 12)
    assert info.loaded.digest == b""
    assert result.pause_seconds == 0
    assert refusal(caught) == (grpc.StatusCode.FAILED_PRECONDITION, "WEIGHTS_MISSING")


async def test_a_server_of_somebody_else_keeps_its_weights(
    folder: Path, other: Path, control: Control
) -> None:
    async with on_running_tgi(folder, control) as served:
        info = await served.info()
        with pytest.raises(CallError) as caught:
            await served.push(other)
        assert len(await served.generate("the")) == 1
    assert info.capabilities.push_kinds == frozenset()
    assert refusal(caught) == (grpc.StatusCode.UNIMPLEMENTED, "FEATURE_UNAVAILABLE")
    assert "weights are fixed" in caught.value.message
    assert PushKind.FULL.name in caught.value.message


def test_the_server_ends_with_the_service_however_that_ends(
    folder: Path, processes: Processes, control: Control
) -> None:
    """Killed, the service has no time to tell anybody."""
    service = processes.serve(
        *("killed", "generation", "--model", str(folder), "--engine", "tgi"),
        *("--engine-command", launcher(control), "--weights-dtype", "float32"),
    )
    service.address(timeout=150)
    (load,) = control.notes("load")
    os.kill(service.popen.pid, signal.SIGKILL)
    wait_until(lambda: not alive(load["pid"]), timeout=30, what="the server is gone")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
