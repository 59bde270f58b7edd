"""Who calls, and what they may do.

A caller shows a token or, under mutual TLS, a certificate. The token file's token may do all. An
access file names callers and gives each the roles that it has:

    [learner]
    roles = ["generate", "push", "score", "transition"]
    tokens = ["…"]

    [dashboard]
    roles = ["watch"]
    certificates = ["dashboard.example.org"]
"""

from __future__ import annotations

import hashlib
import hmac
import tomllib
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import grpc
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from antiphon.services.common.changing_file import ChangingFile
from antiphon.services.common.errors import ServiceError, StartError
from antiphon.services.common.interception import (
    HEALTH_PREFIX,
    Call,
    Context,
    Interceptor,
    Method,
    known_caller,
)
from antiphon.services.common.token_file import TokenFile

SHORTEST_TOKEN = 16
"""Characters that a token of the access file has at least."""

_BEARER = b"Bearer "
_CERTIFICATE_NAMES = ("x509_subject_alternative_name", "x509_common_name")


class Role(StrEnum):
    """What a caller may do; every caller may ask what a service is."""

    WATCH = "watch"
    CONTROL = "control"
    GENERATE = "generate"
    PUSH = "push"
    SCORE = "score"
    TRANSITION = "transition"
    ALL = "all"


ROLES: dict[str, Role | None] = {
    "GenerationService/Generate": Role.GENERATE,
    "GenerationService/PushWeights": Role.PUSH,
    "GenerationService/GetPushStatus": Role.PUSH,
    "GenerationService/GetModelInfo": None,
    "RewardService/Score": Role.SCORE,
    "RewardService/GetRewardInfo": None,
    "TransitionService/Transition": Role.TRANSITION,
    "LearnerService/GetRun": Role.WATCH,
    "LearnerService/WatchRun": Role.WATCH,
    "LearnerService/PauseRun": Role.CONTROL,
    "LearnerService/ResumeRun": Role.CONTROL,
    "LearnerService/StopRun": Role.CONTROL,
    "LearnerService/SaveCheckpoint": Role.CONTROL,
    "LearnerService/Evaluate": Role.CONTROL,
}
"""The role that each RPC of the contract wants; None: every caller may. Others want `ALL`."""


def role_for(path: str) -> Role | None:
    """The role that a method wants, "/package.Service/Method"; None where every caller may."""
    if path.startswith("/grpc.reflection."):
        return None
    return ROLES.get(path.removeprefix("/antiphon.v1."), Role.ALL)


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who may call.

    Attributes:
        name: For messages.
        roles: What they may do.
        tokens: SHA-256 digests of the tokens by which they are known.
        certificates: Names in the certificates by which they are known.
    """

    name: str
    roles: frozenset[Role]
    tokens: tuple[bytes, ...] = ()
    certificates: frozenset[str] = frozenset()


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    roles: tuple[Role, ...] = Field(min_length=1)
    tokens: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()


def read_callers(text: str) -> tuple[Caller, ...]:
    """The callers of an access file's text.

    Raises:
        ValueError: It is no TOML, or an entry is not as it should be. No token is told.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is no TOML ({error})") from None
    if not tables:
        raise ValueError("it names no caller; write one, with roles and tokens or certificates")
    callers = tuple(_caller(name, table, n) for n, (name, table) in enumerate(tables.items(), 1))
    known: set[bytes | str] = set()
    for number, caller in enumerate(callers, 1):
        signs: tuple[bytes | str, ...] = (*caller.tokens, *caller.certificates)
        for sign in signs:
            if sign in known:
                told = _told(caller.name, f"caller {number}")
                raise ValueError(f"[{told}]: a token or certificate that another has too")
            known.add(sign)
    return callers


def _caller(name: str, table: Any, number: int) -> Caller:
    told = f"[{_told(name, f'caller {number}')}]"
    try:
        entry = _Entry.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(_told(str(part), "...") for part in first["loc"])
        raise ValueError(f"{told} {place}: {first['msg']}") from None
    if not (entry.tokens or entry.certificates):
        raise ValueError(f"{told}: neither tokens nor certificates; nobody could be it")
    if any(len(token) < SHORTEST_TOKEN or token.split() != [token] for token in entry.tokens):
        raise ValueError(
            f"{told} tokens: one that is shorter than {SHORTEST_TOKEN} characters or holds "
            "spaces; write random ones"
        )
    return Caller(
        name,
        frozenset(entry.roles),
        tuple(_digest(token.encode()) for token in entry.tokens),
        frozenset(entry.certificates),
    )


def _told(name: str, instead: str) -> str:
    """A name as errors may tell it; what is as long as a token may be one that slipped there."""
    return name if len(name) < SHORTEST_TOKEN else instead


class Access:
    """Tells callers by what they show. Files are read again when they change.

    Args:
        token_file: Holds a token that may do all.
        access_file: Names callers and their roles.
        certificates_shown: Whether the server asks for certificates.

    Raises:
        StartError: A file cannot be read or is not as it should be.
    """

    def __init__(
        self,
        token_file: Path | None,
        access_file: Path | None,
        *,
        certificates_shown: bool = True,
    ) -> None:
        self._token = TokenFile(token_file) if token_file else None
        self._file = access_file and ChangingFile(access_file, "access file", read_callers)
        for caller in self._file.value() if self._file else ():
            if caller.certificates and not certificates_shown:
                raise StartError(
                    f"the access file {access_file} names certificates of {caller.name!r}, "
                    "which nobody shows: give --tls-client-ca too, or tokens in their place"
                )

    def callers(self) -> tuple[Caller, ...]:
        """All who may call now."""
        named = self._file.value() if self._file else ()
        if self._token is None:
            return named
        digest = _digest(self._token.token().encode())
        return (Caller("the token file's caller", frozenset({Role.ALL}), (digest,)), *named)

    def caller(self, token: bytes | None, certificates: Collection[str]) -> Caller:
        """Who calls; a token that is shown decides, else the certificate.

        Args:
            token: The value of the metadata "authorization"; None for none.
            certificates: The names in the caller's certificate.

        Raises:
            ServiceError: UNAUTHENTICATED; neither tells who it is.
        """
        if token is not None:
            return _of_token(token, self.callers())
        for caller in self.callers():
            if not caller.certificates.isdisjoint(certificates):
                return caller
        names = ", ".join(sorted(map(repr, certificates)))
        shown = f"; the certificate, of {names}, is nobody's" if names else ""
        raise ServiceError(
            grpc.StatusCode.UNAUTHENTICATED,
            "no token came; send metadata 'authorization: Bearer TOKEN' (token_file of the "
            f"endpoint){shown}",
        )


def _of_token(value: bytes, callers: Sequence[Caller]) -> Caller:
    """The caller of a token. How long it takes tells nothing of the tokens."""
    given = _digest(value.removeprefix(_BEARER)) if value.startswith(_BEARER) else b""
    found = None
    for caller in callers:
        for known in caller.tokens:
            if hmac.compare_digest(given, known):
                found = caller
    if found is None:
        raise ServiceError(
            grpc.StatusCode.UNAUTHENTICATED,
            "the token is not this server's; compare the caller's token file with the server's",
        )
    return found


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


class Auth(Interceptor):
    """Lets in callers that are known and may do what they ask for; health stays open to all.

    Args:
        access: Tells callers.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    async def around(
        self, method: Method, context: Context, call: Call
    ) -> AsyncGenerator[Any, None]:
        """Checks one call."""
        if method.path.startswith(HEALTH_PREFIX):
            with suppress(ServiceError):
                self._know(context)
        else:
            self._check(method, self._know(context))
        async with aclosing(call()) as answers:
            async for answer in answers:
                yield answer

    def _know(self, context: Context) -> Caller:
        caller = self._access.caller(_token(context), _certificates(context))
        known_caller.set(caller.name)
        return caller

    def _check(self, method: Method, caller: Caller) -> None:
        wanted = role_for(method.path)
        if wanted is None or not caller.roles.isdisjoint({wanted, Role.ALL}):
            return
        raise ServiceError(
            grpc.StatusCode.PERMISSION_DENIED,
            f"{method.path} wants the role {wanted.value!r}, and {caller.name!r} has "
            f"{', '.join(sorted(map(repr, map(str, caller.roles))))}; give it the role in the "
            "server's access file, or call as somebody who has it",
        )


def _token(context: Context) -> bytes | None:
    given = [v for k, v in context.invocation_metadata() or () if k == "authorization"]
    if not given:
        return None
    value = given[-1]
    return value if isinstance(value, bytes) else value.encode()


def _certificates(context: Context) -> frozenset[str]:
    shown = context.auth_context() or {}
    return frozenset(
        name.decode(errors="replace") for kind in _CERTIFICATE_NAMES for name in shown.get(kind, ())
    )
