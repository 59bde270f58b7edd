"""Every fault on the way to a service is told apart, with what to do about it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from prometheus_client import CollectorRegistry
from tests.support.certificates import (
    Certificate,
    CertificateAuthority,
    certificate,
    certificate_authority,
)

from antiphon.clients import identity
from antiphon.clients.endpoint import Endpoint, Tls
from antiphon.clients.reach import Remark, Verdict, calls, first_fault, reach
from antiphon.clients.reach.calls import clocks
from antiphon.services.common import interceptors
from antiphon.services.common.server import Server, ServerSettings
from antiphon.v1 import reward_pb2, reward_pb2_grpc

REWARD = "antiphon.v1.RewardService"
TRANSITION = "antiphon.v1.TransitionService"


class Judge(reward_pb2_grpc.RewardServiceServicer):
    async def GetRewardInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return reward_pb2.GetRewardInfoResponse(name="judge")


@contextlib.asynccontextmanager
async def judging(**settings: Any) -> AsyncIterator[Server]:
    server = Server(
        ServerSettings(metrics_port=None, **settings),
        name="judge",
        services=[REWARD],
        register=lambda server: reward_pb2_grpc.add_RewardServiceServicer_to_server(
            Judge(), server
        ),
        registry=CollectorRegistry(),
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return certificate_authority(tmp_path_factory.mktemp("ca"))


async def remarks(endpoint: Endpoint | str, service: str = REWARD, **options: Any) -> list[Remark]:
    return await reach(Endpoint.of(endpoint), service, timeout=20, **options)


async def fault(endpoint: Endpoint | str, service: str = REWARD) -> Remark:
    """The last remark, which is the only fault."""
    found = await remarks(endpoint, service)
    assert [remark for remark in found[:-1] if remark.verdict is Verdict.FAULT] == []
    assert found[-1].verdict is Verdict.FAULT
    assert found[-1].advice
    return found[-1]


async def test_a_service_that_is_well_is_ok_in_every_step() -> None:
    async with judging() as server:
        found = await remarks(server.address, push_bytes=269_000_000)
    assert [remark.what for remark in found] == [
        "connection",
        "health",
        "token",
        "version",
        "clock",
        "latency",
        "upload",
    ]
    by_name = {remark.what: remark for remark in found}
    assert by_name["version"] == Remark("version", Verdict.OK, identity.version())
    assert by_name["health"].detail == "SERVING"
    assert "a full push of 269 MB takes about" in by_name["upload"].detail
    for name in ("connection", "health", "token", "version", "clock"):
        assert by_name[name].verdict is Verdict.OK


async def test_a_unix_socket_is_reached_too(tmp_path: Path) -> None:
    async with judging(host=f"unix:{tmp_path}/judge.sock") as server:
        found = await remarks(server.address)
    assert found[0].detail == f"the socket {tmp_path}/judge.sock is open"
    assert {remark.what for remark in found} >= {"health", "version", "latency"}


async def test_a_name_that_nobody_knows() -> None:
    found = await fault("no-such-host.invalid:50051")
    assert found.what == "name"
    assert "no-such-host.invalid is not known" in found.detail


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("ipv4:10.0.0.1", "has no port"),
        ("ipv6:[::1]", "has no port"),
        (f"{'a' * 64}.invalid:50051", "is not known"),
    ],
)
async def test_an_address_that_cannot_be_looked_up(address: str, told: str) -> None:
    found = await fault(address)
    assert (found.what, told in found.detail) == ("name", True)


async def test_a_unix_socket_may_speak_tls(tmp_path: Path, ca: CertificateAuthority) -> None:
    own = certificate(tmp_path, "server", ca)
    async with judging(
        host=f"unix:{tmp_path}/s.sock", tls_cert=own.cert, tls_key=own.key
    ) as server:
        named = Tls(ca=ca.cert, server_name="localhost")
        found = await remarks(Endpoint(address=server.address, tls=named))
        unnamed = await fault(Endpoint(address=server.address, tls=Tls(ca=ca.cert)))
        plain = await fault(server.address)
    assert [remark.what for remark in found if remark.verdict is Verdict.FAULT] == []
    assert "set tls.server_name" in unnamed.advice
    assert "the server speaks TLS" in plain.advice


async def test_the_first_fault_alone(tmp_path: Path) -> None:
    nobody = Endpoint.of(f"unix:{tmp_path}/nobody.sock")
    found = await first_fault(nobody, REWARD, timeout=20)
    assert found is not None
    assert found.what == "connection"
    async with judging() as server:
        assert await first_fault(Endpoint.of(server.address), REWARD, timeout=20) is None


async def test_a_service_that_breaks_while_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def breaks(*_: object) -> float:
        none = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, none, none, "gone")

    monkeypatch.setattr(calls, "latency", breaks)
    async with judging() as server:
        found = await fault(server.address)
    assert (found.what, found.detail) == ("calls", "UNAVAILABLE: gone")


async def test_a_port_where_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        found = await fault(f"127.0.0.1:{taken.getsockname()[1]}")
    assert found.what == "connection"
    assert "refused" in found.detail


async def test_a_server_that_speaks_no_grpc() -> None:
    async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(hangs_up, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        found = await reach(Endpoint.of(f"127.0.0.1:{port}"), REWARD, timeout=3)
    assert found[-1].what == "health"
    assert found[-1].verdict is Verdict.FAULT
    assert "speaks no gRPC" in found[-1].advice


async def test_a_server_of_something_else() -> None:
    async with judging() as server:
        found = await fault(server.address, TRANSITION)
    assert (found.what, found.detail) == ("health", f"a gRPC server without {TRANSITION}")


async def test_a_server_that_drains() -> None:
    async with judging() as server:
        await server.set_serving(False)
        found = await fault(server.address)
    assert (found.what, found.detail) == ("health", "NOT_SERVING")


async def test_a_missing_and_a_wrong_token(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("a-secret-of-the-test")
    wrong.write_text("another-secret")
    async with judging(token_file=right) as server:
        missing = await fault(server.address)
        refused = await fault(Endpoint(address=server.address, token_file=wrong))
        well = await remarks(Endpoint(address=server.address, token_file=right))
    for found in (missing, refused):
        assert found.what == "token"
        assert "UNAUTHENTICATED" in found.detail
        assert "secret" not in found.detail
    assert Remark("token", Verdict.OK, "let in") in well


async def test_who_is_refused_is_not_told_the_version(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-secret-of-the-test")
    async with (
        judging(token_file=token) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        call = reward_pb2_grpc.RewardServiceStub(channel).GetRewardInfo(
            reward_pb2.GetRewardInfoRequest(), timeout=20
        )
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        told = dict(await call.initial_metadata() or ())
    assert identity.VERSION_KEY not in told


async def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    async with judging() as server:
        found = await remarks(Endpoint(address=server.address, token_file=tmp_path / "gone"))
    assert found[-1].verdict is Verdict.FAULT
    assert "token_file" in found[-1].detail


async def test_tls_that_fits_says_how_long_the_certificate_is_valid(
    tmp_path: Path, ca: CertificateAuthority
) -> None:
    own = certificate(tmp_path, "server", ca)
    async with judging(tls_cert=own.cert, tls_key=own.key) as server:
        found = await remarks(Endpoint(address=server.address, tls=Tls(ca=ca.cert)))
    tls = next(remark for remark in found if remark.what == "TLS")
    assert tls.verdict is Verdict.OK
    assert tls.detail.startswith("the certificate is valid until ")
    assert all(remark.verdict is not Verdict.FAULT for remark in found)


async def test_mutual_tls_is_reached_with_the_client_s_certificate(
    tmp_path: Path, ca: CertificateAuthority
) -> None:
    own, client = certificate(tmp_path, "server", ca), certificate(tmp_path, "client", ca)
    settings = {"tls_cert": own.cert, "tls_key": own.key, "tls_client_ca": ca.cert}
    async with judging(**settings) as server:
        shown = Tls(ca=ca.cert, certificate=client.cert, key=client.key)
        well = await remarks(Endpoint(address=server.address, tls=shown))
        without = await reach(
            Endpoint(address=server.address, tls=Tls(ca=ca.cert)), REWARD, timeout=3
        )
    assert well[-1].what == "latency"
    assert without[-1].verdict is Verdict.FAULT


async def test_another_ca_and_another_name_and_plain_text_on_either_side(
    tmp_path: Path, ca: CertificateAuthority
) -> None:
    own, other = certificate(tmp_path, "server", ca), certificate_authority(tmp_path, "other")
    async with judging(tls_cert=own.cert, tls_key=own.key) as server:
        address = server.address
        stranger = await fault(Endpoint(address=address, tls=Tls(ca=other.cert)))
        renamed = await fault(
            Endpoint(address=address, tls=Tls(ca=ca.cert, server_name="judge.example"))
        )
        plain = (await reach(Endpoint.of(address), REWARD, timeout=3))[-1]
    assert stranger.what == renamed.what == "TLS"
    assert "set tls.ca" in stranger.advice
    assert "judge.example" in renamed.advice
    assert plain.verdict is Verdict.FAULT
    assert "the server speaks TLS" in plain.advice
    async with judging() as server:
        found = await fault(Endpoint(address=server.address, tls=Tls(ca=ca.cert)))
    assert found.what == "TLS"
    assert "speaks no TLS" in found.advice


def issued(directory: Path, ca: CertificateAuthority, ends_in: timedelta) -> Certificate:
    made = Certificate(directory / "own.crt", directory / "own.key")
    ends = datetime.now(UTC) + ends_in
    own = ca.authority.issue_cert("localhost", "127.0.0.1", not_after=ends)
    own.cert_chain_pems[0].write_to_path(made.cert)
    own.private_key_pem.write_to_path(made.key)
    return made


async def test_a_certificate_near_its_end_and_past_it(
    tmp_path: Path, ca: CertificateAuthority
) -> None:
    soon = issued(tmp_path, ca, timedelta(days=3))
    async with judging(tls_cert=soon.cert, tls_key=soon.key) as server:
        found = await remarks(Endpoint(address=server.address, tls=Tls(ca=ca.cert)))
    tls = next(remark for remark in found if remark.what == "TLS")
    assert tls.verdict is Verdict.WARNING
    assert found[-1].what == "latency"
    past = issued(tmp_path, ca, timedelta(seconds=-60))
    async with judging(tls_cert=past.cert, tls_key=past.key) as server:
        ended = await fault(Endpoint(address=server.address, tls=Tls(ca=ca.cert)))
    assert ended.advice == "renew the server's certificate"


async def test_another_version_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interceptors, "version", lambda: "9.9.9")
    async with judging() as server:
        found = {remark.what: remark for remark in await remarks(server.address)}
    assert found["version"].verdict is Verdict.WARNING
    assert found["version"].detail == f"9.9.9, and {identity.version()} here"


@pytest.mark.parametrize(("skew", "told"), [(120.0, "120 s ahead"), (-61.0, "61 s behind")])
def test_a_clock_that_is_off_is_told_with_its_direction(skew: float, told: str) -> None:
    found = clocks(f"{1000.0 + skew:.6f}", began=999.9, seconds=0.2)
    assert found.verdict is Verdict.WARNING
    assert told in found.detail
    assert clocks("1001.0", began=1000.0, seconds=0.1).verdict is Verdict.OK
