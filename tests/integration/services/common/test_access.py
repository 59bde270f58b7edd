"""Which caller may do what, over real connections."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry
from tests.support.certificates import certificate, certificate_authority

from antiphon.clients.endpoint import Endpoint, Tls, open_channel
from antiphon.services.common.access import ROLES, Role
from antiphon.services.common.server import Server, ServerSettings
from antiphon.v1 import generation_pb2, learner_pb2, reward_pb2, transition_pb2

PROTOS = (generation_pb2, learner_pb2, reward_pb2, transition_pb2)
METHODS = [
    f"{service.full_name}/{method.name}"
    for proto in PROTOS
    for service in proto.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
LET_IN = grpc.StatusCode.INTERNAL
"""What a caller who is let in gets of a servicer that implements nothing."""
DENIED = grpc.StatusCode.PERMISSION_DENIED
CALLERS = """
[trainer]
roles = ["generate", "push"]
tokens = ["trainer-token-0001"]

[judge-caller]
roles = ["score", "transition"]
tokens = ["judging-token-0002", "judging-token-0003"]

[operator]
roles = ["watch", "control"]
tokens = ["operator-token-0004"]

[screen]
roles = ["watch"]
tokens = ["watching-token-0005"]

[root]
roles = ["all"]
tokens = ["root-caller-token-0006"]
"""


def _register(server: grpc.aio.Server) -> None:
    """Every service of the contract, without its methods."""
    for proto in PROTOS:
        module = __import__(f"{proto.__name__}_grpc", fromlist=["*"])
        for name in proto.DESCRIPTOR.services_by_name:
            add = getattr(module, f"add_{name}Servicer_to_server")
            add(getattr(module, f"{name}Servicer")(), server)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[str]:
    server = Server(
        ServerSettings(**{"metrics_port": None, **settings}),
        name="test",
        services=[],
        register=_register,
        registry=CollectorRegistry(),
    )
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop(0)


async def answer(
    channel: grpc.aio.Channel, method: str, token: str | None = None
) -> tuple[grpc.StatusCode, str]:
    """Code and message of an empty call, the unary way, which servers take of any method."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    call = channel.unary_unary(f"/{method}")(b"", timeout=60, metadata=metadata)
    return await call.code(), str(await call.details())


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_every_rpc_says_which_role_it_wants() -> None:
    assert {method.removeprefix("antiphon.v1.") for method in METHODS} == ROLES.keys()


@pytest.mark.parametrize("name", [role.value for role in Role])
async def test_a_role_opens_its_methods_and_no_others(tmp_path: Path, name: str) -> None:
    """Who may push weights, who may only generate, who may control the run, who may only watch."""
    token = "a-token-of-sixteen"
    text = f'[somebody]\nroles = ["{name}"]\ntokens = ["{token}"]\n'
    async with (
        serving(access_file=written(tmp_path / "access.toml", text)) as address,
        open_channel(address) as channel,
    ):
        for method in METHODS:
            wanted = ROLES[method.removeprefix("antiphon.v1.")]
            opens = wanted is None or name in ("all", wanted)
            code, details = await answer(channel, method, token)
            assert code is (LET_IN if opens else DENIED), method
            if not opens:
                assert f"/{method} wants the role '{wanted}'" in details
                assert f"'somebody' has '{name}'" in details


async def test_roles_add_up_and_every_token_of_a_caller_counts(tmp_path: Path) -> None:
    push, score = "antiphon.v1.GenerationService/PushWeights", "antiphon.v1.RewardService/Score"
    async with (
        serving(access_file=written(tmp_path / "access.toml", CALLERS)) as address,
        open_channel(address) as channel,
    ):
        assert (await answer(channel, push, "trainer-token-0001"))[0] is LET_IN
        assert (await answer(channel, score, "trainer-token-0001"))[0] is DENIED
        for token in ("judging-token-0002", "judging-token-0003"):
            assert (await answer(channel, score, token))[0] is LET_IN
            assert (await answer(channel, push, token))[0] is DENIED
        assert (await answer(channel, push, "root-caller-token-0006"))[0] is LET_IN


async def test_who_is_not_known_is_refused_and_no_token_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S18"""
    caplog.set_level("DEBUG")
    info = "antiphon.v1.GenerationService/GetModelInfo"
    async with (
        serving(access_file=written(tmp_path / "access.toml", CALLERS)) as address,
        open_channel(address) as channel,
    ):
        for token in (None, "trainer-token-000", "trainer-token-00011", "trainer"):
            code, details = await answer(channel, info, token)
            assert code is grpc.StatusCode.UNAUTHENTICATED
            assert "-token-" not in details
        code, details = await answer(
            channel, "antiphon.v1.LearnerService/StopRun", "watching-token-0005"
        )
        assert code is DENIED
        assert "-token-" not in details
        stub = health_pb2_grpc.HealthStub(channel)
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("antiphon")]
    assert any("PERMISSION_DENIED" in line for line in lines)
    assert not any("-token-" in line for line in lines)


async def test_a_changed_file_counts_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    push = "antiphon.v1.GenerationService/PushWeights"
    file = written(tmp_path / "access.toml", CALLERS)
    async with serving(access_file=file) as address, open_channel(address) as channel:
        assert (await answer(channel, push, "trainer-token-0001"))[0] is LET_IN
        file.write_text(CALLERS.replace("trainer-token-0001", "renewed-token-0001"))
        assert (await answer(channel, push, "renewed-token-0001"))[0] is LET_IN
        code, _ = await answer(channel, push, "trainer-token-0001")
        assert code is grpc.StatusCode.UNAUTHENTICATED
        file.write_text('[trainer]\nroles = ["pus"]\ntokens = ["renewed-token-0001"]\n')
        assert (await answer(channel, push, "renewed-token-0001"))[0] is LET_IN
        file.write_text('[trainer]\nroles = ["watch"]\ntokens = ["renewed-token-0001"]\n')
        assert (await answer(channel, push, "renewed-token-0001"))[0] is DENIED
    lines = [record.getMessage() for record in caplog.records]
    assert any("what it said before counts" in line for line in lines)
    assert not any("-token-" in line for line in lines)


async def test_the_token_files_token_may_do_all_beside_named_callers(tmp_path: Path) -> None:
    token = written(tmp_path / "token", "short\n")
    push = "antiphon.v1.GenerationService/PushWeights"
    for files in (
        {"token_file": token},
        {"token_file": token, "access_file": written(tmp_path / "access.toml", CALLERS)},
    ):
        async with serving(**files) as address, open_channel(address) as channel:
            for method in METHODS:
                assert (await answer(channel, method, "short"))[0] is LET_IN
            expected = DENIED if "access_file" in files else grpc.StatusCode.UNAUTHENTICATED
            assert (await answer(channel, push, "watching-token-0005"))[0] is expected


async def test_a_certificates_name_tells_the_caller_and_its_roles(tmp_path: Path) -> None:
    """S18: another service's certificate, signed by the same CA, opens nothing."""
    ca = certificate_authority(tmp_path)
    own = certificate(tmp_path, "server", ca)
    text = '[learner]\nroles = ["push"]\ncertificates = ["learner.example"]\n'
    settings = {
        "tls_cert": own.cert,
        "tls_key": own.key,
        "tls_client_ca": ca.cert,
        "access_file": written(tmp_path / "access.toml", text),
    }
    push, stop = METHODS[1], "antiphon.v1.LearnerService/StopRun"
    assert push.endswith("PushWeights")
    async with serving(**settings) as address:
        for name, codes in (
            ("learner.example", (LET_IN, DENIED)),
            ("reward.example", (grpc.StatusCode.UNAUTHENTICATED,) * 2),
        ):
            shown = certificate(tmp_path, name, ca)
            tls = Tls(ca=ca.cert, certificate=shown.cert, key=shown.key)
            async with open_channel(Endpoint(address=address, tls=tls)) as channel:
                found = [await answer(channel, method) for method in (push, stop)]
                assert tuple(code for code, _ in found) == codes
                if codes[0] is not LET_IN:
                    assert "'reward.example'" in found[0][1]


async def test_a_renewed_ca_and_certificate_reach_without_a_restart_of_either_side(
    tmp_path: Path,
) -> None:
    """The same server and the same channel, with all four files replaced in between."""
    ca, next_ca = certificate_authority(tmp_path), certificate_authority(tmp_path, "next")
    own, mine = certificate(tmp_path, "server", ca), certificate(tmp_path, "client", ca)
    settings = {"tls_cert": own.cert, "tls_key": own.key, "tls_client_ca": tmp_path / "clients.crt"}
    (tmp_path / "clients.crt").write_bytes(ca.cert.read_bytes())
    tls = Tls(ca=ca.cert, certificate=mine.cert, key=mine.key)
    method = METHODS[0]
    async with (
        serving(**settings) as address,
        open_channel(Endpoint(address=address, tls=tls)) as channel,
    ):
        assert (await answer(channel, method))[0] is LET_IN
        fresh = (
            certificate(tmp_path, "server-2", next_ca),
            certificate(tmp_path, "client-2", next_ca),
        )
        for old, new in (
            (own.cert, fresh[0].cert),
            (own.key, fresh[0].key),
            (tmp_path / "clients.crt", next_ca.cert),
        ):
            old.write_bytes(new.read_bytes())
        async with open_channel(Endpoint(address=address, tls=tls)) as late:
            assert (await answer(late, method))[0] is grpc.StatusCode.UNAVAILABLE
        for old, new in ((mine.cert, fresh[1].cert), (mine.key, fresh[1].key)):
            old.write_bytes(new.read_bytes())
        ca.cert.write_bytes(next_ca.cert.read_bytes())
        assert (await answer(channel, method))[0] is LET_IN
        os.truncate(mine.cert, 0)
        assert (await answer(channel, method))[0] is LET_IN
