"""Where services are, and what a channel to them is set to."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from antiphon.clients import channel_options as fit
from antiphon.clients.endpoint import Endpoint, Tls, is_local, open_channel
from antiphon.clients.types import FieldError


@pytest.mark.parametrize(
    "address",
    [
        "localhost:50051",
        "10.0.0.7:1",
        "[::1]:50051",
        "reward.svc.cluster.local:65535",
        "unix:/run/reward.sock",
        "unix:relative.sock",
        "dns:///reward:50061",
        "dns:reward:50061",
        "dns:///[::1]:50061",
        "dns://10.0.0.2/reward:50061",
        "dns://10.0.0.2:53/reward:50061",
        "dns://[fd00::2]/reward:50061",
    ],
)
def test_known_forms_of_an_address_are_accepted(address: str) -> None:
    assert Endpoint.of(address).address == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost",
        "http://localhost:80",
        "localhost:",
        ":50051",
        "a:b",
        "a:0",
        "a:70000",
        "unix:",
    ],
)
def test_other_forms_are_refused_saying_what_is_wanted(address: str) -> None:
    with pytest.raises(FieldError, match="host:port"):
        Endpoint.of(address)
    with pytest.raises(ValidationError, match="host:port"):
        Endpoint(address=address)


@pytest.mark.parametrize(
    "address",
    [
        "dns:",
        "dns:///reward",
        "dns:///reward:0",
        "dns:///reward:99999",
        "dns:///reward:99999999",
        "dns:///reward:port",
        "dns://10.0.0.2:abc/reward:50061",
        "dns://10.0.0.2:99999/reward:50061",
        "dns://10.0.0.2:/reward:50061",
        "dns://server:abc/reward:50061",
        "dns://server/reward:50061",
    ],
)
def test_names_are_refused_where_port_or_dns_server_cannot_be(address: str) -> None:
    """In the configuration, and not when the name is first looked up."""
    with pytest.raises(ValidationError, match="IP address of a DNS server") as refused:
        Endpoint(address=address)
    assert refused.value.errors()[0]["loc"] == ("address",)


def test_a_plain_address_stands_for_an_endpoint_in_settings() -> None:
    class Settings(BaseModel):
        services: list[Endpoint]

    settings = Settings.model_validate({"services": ["a:1", {"address": "b:2"}]})
    assert settings.services == [Endpoint(address="a:1"), Endpoint(address="b:2")]


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("localhost:1", True),
        ("127.0.0.1:1", True),
        ("127.8.9.1:1", True),
        ("[::1]:1", True),
        ("unix:/a", True),
        ("dns:///localhost:1", True),
        ("10.0.0.1:1", False),
        ("0.0.0.0:1", False),
        ("localhost.example.com:1", False),
        ("dns:///reward:1", False),
    ],
)
def test_local_addresses_are_those_that_cannot_leave_the_machine(address: str, local: bool) -> None:
    assert is_local(address) == local


def test_a_token_does_not_travel_in_plain_text_unless_told_so(tmp_path: Path) -> None:
    """S18: the token is a secret."""
    token = tmp_path / "token"
    token.write_text("secret\n")
    with pytest.raises(ValidationError, match="plain text"):
        Endpoint(address="10.0.0.1:1", token_file=token)
    for allowed in (
        Endpoint(address="10.0.0.1:1", token_file=token, insecure=True),
        Endpoint(address="10.0.0.1:1", token_file=token, tls=Tls()),
        Endpoint(address="localhost:1", token_file=token),
    ):
        assert allowed.metadata() == (("authorization", "Bearer secret"),)


def test_a_token_is_read_anew_for_every_call(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    endpoint = Endpoint(address="localhost:1", token_file=token)
    assert endpoint.metadata()[0][1] == "Bearer old"
    token.write_text("new")
    assert endpoint.metadata()[0][1] == "Bearer new"
    token.write_text("  \n")
    with pytest.raises(FieldError, match="token_file"):
        endpoint.metadata()
    token.unlink()
    with pytest.raises(FieldError, match="token_file"):
        endpoint.metadata()


def test_certificate_and_key_belong_together(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="both or neither"):
        Tls(certificate=tmp_path / "c")


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    endpoint = Endpoint(address="localhost:1", tls=Tls(ca=tmp_path / "ca.pem"))
    with pytest.raises(FieldError, match=r"tls\.ca.*ca\.pem"):
        open_channel(endpoint)


def test_clients_ping_no_more_often_than_servers_permit() -> None:
    """S14: both sides take their settings from one place, and they fit."""
    server = dict(fit.server_options())
    permitted = server["grpc.http2.min_recv_ping_interval_without_data_ms"]
    ours = dict(fit.client_options())
    assert int(ours["grpc.keepalive_time_ms"]) >= 2 * int(permitted)
    # What any gRPC server permits by default: one ping in five minutes.
    foreign = dict(fit.client_options(fit.PING_SECONDS_FOREIGN))
    assert int(foreign["grpc.keepalive_time_ms"]) > 300_000


@pytest.mark.parametrize("service", [None, "antiphon.v1.RewardService"])
def test_retries_are_ours_alone(service: str | None) -> None:
    """S8: gRPC's own retries would multiply with ours; no service config brings them back."""
    options: dict[str, Any] = dict(fit.client_options(balanced_service=service))
    assert options["grpc.enable_retries"] == 0
    assert options["grpc.service_config_disable_resolution"] == 1
    config = json.loads(options.get("grpc.service_config", "{}"))
    # A "timeout" in a service config fails calls after milliseconds; deadlines are per call.
    assert "methodConfig" not in config


def test_batches_for_any_server_stay_below_its_default_limit() -> None:
    """S1: 4 MiB, envelope included."""
    assert fit.REQUEST_BYTES < 4 * 1024 * 1024
