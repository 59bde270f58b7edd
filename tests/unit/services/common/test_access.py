"""What an access file may say."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest

from antiphon.services.common.access import Access, Role, read_callers, role_for
from antiphon.services.common.errors import ServiceError, StartError
from antiphon.services.common.server_settings import ServerSettings

SECRET = "a-secret-of-sixteen"


def test_callers_are_read_with_their_roles() -> None:
    learner, screen = read_callers(
        f'[learner]\nroles = ["push", "generate"]\ntokens = ["{SECRET}"]\n'
        '[screen]\nroles = ["watch"]\ncertificates = ["screen.example"]\n'
    )
    assert (learner.name, learner.roles) == ("learner", {Role.PUSH, Role.GENERATE})
    assert SECRET.encode() not in learner.tokens
    assert screen.certificates == {"screen.example"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no caller"),
        ("roles = [", "no TOML"),
        ('a = "b"', r"\[a\]"),
        (f'[a]\ntokens = ["{SECRET}"]', r"\[a\] roles"),
        (f'[a]\nroles = []\ntokens = ["{SECRET}"]', r"\[a\] roles"),
        (f'[a]\nroles = ["puhs"]\ntokens = ["{SECRET}"]', r"\[a\] roles.0.*'push'"),
        (f'[a]\nrole = ["push"]\nroles = ["push"]\ntokens = ["{SECRET}"]', r"\[a\] role:"),
        ('[a]\nroles = ["push"]', "nobody could be it"),
        ('[a]\nroles = ["push"]\ntokens = ["short-secret"]', "shorter than 16"),
        (f'[a]\nroles = ["push"]\ntokens = [" {SECRET}"]', "spaces"),
        (
            f'[a]\nroles = ["push"]\ntokens = ["{SECRET}"]\n'
            f'[b]\nroles = ["push"]\ntokens = ["{SECRET}"]',
            r"\[b\].*another",
        ),
        (f'[a]\nroles = ["push"]\ntokens = ["{SECRET}"]\n[{SECRET}]', r"\[caller 2\] roles"),
        (f'[a]\nroles = ["push"]\n{SECRET} = ["tokens"]', r"\[a\] \.\.\.: Extra"),
    ],
)
def test_a_wrong_file_is_refused_at_the_start_without_telling_secrets(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "access.toml"
    path.write_text(text)
    with pytest.raises(StartError, match=problem) as raised:
        Access(None, path)
    assert "access.toml" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_what_the_contract_does_not_know_is_for_those_who_may_do_all() -> None:
    assert role_for("/other.v1.Service/Method") is Role.ALL
    assert role_for("/antiphon.v1.GenerationService/New") is Role.ALL
    assert role_for("/antiphon.v1.GenerationService/GetModelInfo") is None


def test_certificates_are_of_no_use_where_none_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    path.write_text('[a]\nroles = ["push"]\ncertificates = ["a.example"]')
    with pytest.raises(StartError, match="--tls-client-ca"):
        Access(None, path, certificates_shown=False)
    Access(None, path, certificates_shown=True)


def test_an_access_file_guards_a_server_that_others_can_reach(tmp_path: Path) -> None:
    tls = {"tls_cert": tmp_path / "c", "tls_key": tmp_path / "k"}
    with pytest.raises(StartError, match="--access-file"):
        ServerSettings(host="0.0.0.0", **tls).check()
    ServerSettings(host="0.0.0.0", access_file=tmp_path / "a", **tls).check()


def test_tokens_are_compared_as_digests_and_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long a comparison takes tells neither a token's beginning nor its place in the file."""
    path = tmp_path / "access.toml"
    tokens = [f"{number}-{SECRET}" for number in range(3)]
    path.write_text(
        "".join(f'[c{n}]\nroles = ["push"]\ntokens = ["{t}"]\n' for n, t in enumerate(tokens))
    )
    access = Access(None, path)
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, known: bytes) -> bool:
        compared.append((given, known))
        return given == known

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for number, token in enumerate(tokens):
        assert access.caller(f"Bearer {token}".encode(), ()).name == f"c{number}"
    with pytest.raises(ServiceError):
        access.caller(b"Bearer wrong", ())
    assert len(compared) == 4 * len(tokens)
    assert {len(one) for pair in compared for one in pair} == {32}
