"""One running text-generation-inference: started by this service, or found at an address."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.clients.types import LoadedWeights
from antiphon.services.common.errors import StartError
from antiphon.services.common.models import encode_text
from antiphon.services.generation.engines.model_folders import adapter_of
from antiphon.services.generation.engines.program import (
    Program,
    answers,
    filled,
    free_port,
    get_json,
)
from antiphon.services.generation.engines.served_model import ServedModel
from antiphon.services.generation.engines.tgi.client import TgiClient, TgiLimits

_ADAPTER_ID = "antiphon"
_TRIAL = "Wie geht's? Say “naïve 🐉”, twice:\n  1."
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A healthy server and what it serves. `program` and `folder` are None where it is not ours."""

    url: str
    loaded: LoadedWeights
    limits: TgiLimits
    vocabulary_size: int
    program: Program | None = None
    folder: Path | None = None

    @property
    def adapter_id(self) -> str | None:
        """The name of its LoRA adapter; None for none."""
        return _ADAPTER_ID if self.folder is not None and adapter_of(self.folder) else None

    def connect(self) -> TgiClient:
        """A client of it."""
        return TgiClient(self.url, self.limits, self.vocabulary_size, adapter_id=self.adapter_id)


def launched(
    command: str,
    folder: Path,
    loaded: LoadedWeights,
    served: ServedModel,
    *,
    timeout: float,
    given_up: Callable[[], bool] = lambda: False,
) -> RunningServer:
    """Starts a server on a version's folder and waits until it says that it serves that. Blocks.

    Args:
        command: Its command line, with ``{model}`` and ``{port}``.
        folder: The version.
        loaded: What the folder holds.
        served: What the service knows of the model.
        timeout: Seconds until it must be healthy.
        given_up: Asked now and then whether nobody waits any more.

    Raises:
        StartError: It did not come up, or serves something else.
    """
    port = free_port()
    adapter = adapter_of(folder)
    environ = {} if adapter is None else {"LORA_ADAPTERS": f"{_ADAPTER_ID}={adapter}"}
    program = Program(filled(command, model=folder, port=port), port, environ)
    try:
        program.wait_healthy(timeout, given_up)
        limits = _examined(program.url, served)
        if limits.model_id != str(folder):
            raise StartError(
                f"text-generation-inference at {program.url} serves {limits.model_id!r}, wanted "
                f"{str(folder)!r}; does --engine-command hand {{model}} to it?"
            )
    except BaseException:
        program.end()
        raise
    return RunningServer(program.url, loaded, limits, served.vocabulary_size, program, folder)


def found(address: str, loaded: LoadedWeights, served: ServedModel) -> RunningServer:
    """A server that somebody else runs. Blocks.

    Raises:
        StartError: It does not answer as text-generation-inference does.
    """
    url = address.rstrip("/")
    if "://" not in url:
        url = f"http://{url}"
    if not answers(f"{url}/health"):
        raise StartError(
            f"--engine-address {address}: nobody says at /health that it serves; start "
            "text-generation-inference there first"
        )
    return RunningServer(url, loaded, _examined(url, served), served.vocabulary_size)


def _examined(url: str, served: ServedModel) -> TgiLimits:
    """What the server says of itself, once it is known to be the right kind.

    Raises:
        StartError: It is not, or makes other tokens of a text.
    """
    try:
        info = get_json(f"{url}/info")
        limits = TgiLimits(
            model_id=str(info["model_id"]),
            max_concurrent_requests=int(info["max_concurrent_requests"]),
            max_input_tokens=int(info["max_input_tokens"]),
            max_total_tokens=int(info["max_total_tokens"]),
            max_top_n_tokens=_largest_top_n(url),
        )
        _check_tokenizer(url, served)
    except (OSError, http.client.HTTPException, KeyError, TypeError, ValueError) as error:
        raise StartError(
            f"{url} does not answer as text-generation-inference does at /info, /generate and "
            f"/tokenize: {error!r}"
        ) from error
    return limits


def _largest_top_n(url: str) -> int:
    """How many of the likeliest tokens the server tells; it says so when asked for too many."""
    asked = {"inputs": "1", "parameters": {"max_new_tokens": 1, "top_n_tokens": 10**6}}
    status, answer = _post(f"{url}/generate", asked)
    said = re.search(r"top_n_tokens.*<= (\d+)", str(answer.get("error", "")))
    return int(said.group(1)) if status == 422 and said else 0


def _check_tokenizer(url: str, served: ServedModel) -> None:
    status, answer = _post(f"{url}/tokenize", {"inputs": _TRIAL})
    if status == 404:
        return  # It has no fast tokenizer to ask; every prompt's ids are compared all the same.
    theirs = [int(token["id"]) for token in answer] if isinstance(answer, list) else answer
    ours = encode_text(served.tokenizer, _TRIAL, special=True)
    if theirs != ours:
        raise StartError(
            f"text-generation-inference at {url} makes token ids {str(theirs)[:120]} of "
            f"{_TRIAL!r}, wanted {str(ours)[:120]}, those of {served.tokenizer_source}; serve both "
            "with the same tokenizer"
        )


def _post(url: str, body: dict[str, Any]) -> tuple[int, Any]:
    request = urllib.request.Request(  # noqa: S310
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_SECONDS) as answer:  # noqa: S310
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")
