"""Log lines for machines and for people."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from antiphon.services.common.logs import configure_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_hold_message_exception_and_extras(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging("json", "warning")
    log = logging.getLogger("a.logger")
    log.info("not shown")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("two\nlines %s", "é", extra={"joint_action_id": "j1"})
    (line,) = capfd.readouterr().err.splitlines()
    entry = json.loads(line)
    assert entry["message"] == "two\nlines é"
    assert (entry["level"], entry["logger"]) == ("error", "a.logger")
    assert entry["joint_action_id"] == "j1"
    assert "ValueError: broken" in entry["exception"]
    assert entry["time"].endswith("+00:00")


def test_text_lines_hold_extras(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging("text", "info")
    logging.getLogger("a.logger").info("hello", extra={"agent": 1})
    line = capfd.readouterr().err.strip()
    assert line.endswith("INFO    a.logger: hello agent=1")
