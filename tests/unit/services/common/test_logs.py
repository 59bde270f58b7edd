"""Log lines for machines and for people."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.services.common.logs import JsonStream, configure_logging, json_line


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream, hooks = sys.stderr, (sys.excepthook, threading.excepthook)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.stderr, (sys.excepthook, threading.excepthook) = stream, hooks
    logging.captureWarnings(False)


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


def test_extras_take_no_place_of_the_lines_own_and_are_json_all_through(
    capfd: pytest.CaptureFixture[str],
) -> None:
    configure_logging("json", "info")
    extra = {"level": "fake", "logger": None, "figures": {"a": [float("nan"), 1.5], 2: (3,)}}
    logging.getLogger("a.logger").info("caf\u00e9 \u2028", extra=extra)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.isascii()
    entry = json.loads(line, parse_constant=pytest.fail)
    assert (entry["level"], entry["logger"]) == ("info", "a.logger")
    assert entry["message"] == "caf\u00e9 \u2028"
    assert entry["figures"] == {"a": ["nan", 1.5], "2": [3]}


def test_who_writes_in_the_middle_of_a_line_is_not_waited_for() -> None:
    """A finalizer or a signal handler that prints runs on the thread that is at a line."""

    class Prints(io.StringIO):
        def write(self, text: str) -> int:
            if "outer" in text:
                printed.write("inner\n")
            return super().write(text)

    beneath = Prints()
    printed = JsonStream(beneath)
    thread = threading.Thread(target=printed.write, args=("outer\n",), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert [json.loads(line)["message"] for line in beneath.getvalue().splitlines()] == [
        "inner",
        "outer",
    ]


def test_text_lines_hold_extras(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging("text", "info")
    logging.getLogger("a.logger").info("hello", extra={"agent": 1})
    line = capfd.readouterr().err.strip()
    assert line.endswith("INFO    a.logger: hello agent=1")


PROGRAM = """
import logging, sys, threading, warnings
from antiphon.services.common.logs import configure_logging

configure_logging("text")
configure_logging("json")
logging.getLogger("a.logger").warning("logged")
warnings.warn("a warning")
print("printed", "by a function", file=sys.stderr)
sys.stderr.write("two lines\\nat once\\n")
sys.stderr.write("antiphon: the root error\\n")
print("unfinished", end="", file=sys.stderr, flush=True)
print("", file=sys.stderr)
print("flushed", end="", file=sys.stderr, flush=True)
print("goes on", file=sys.stderr)
for percent in (0, 50, 100):
    print(f"\\r{percent} %", end="", file=sys.stderr, flush=True)
print(file=sys.stderr)
print("\\r0 %", "\\r   \\r", sep="", end="", file=sys.stderr, flush=True)
sys.stderr.reconfigure(encoding="latin-1", errors="strict")
print("caf\u00e9", "\\r\\n", sep="", end="", file=sys.stderr)
sys.stderr.buffer.write("caf\u00e9 ".encode()[:4])
sys.stderr.buffer.write("caf\u00e9 ".encode()[4:] + b"\\xff")
sys.stderr.buffer.flush()
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
print("no end of line", end="", file=sys.stderr)
raise KeyError("nobody catches it")
"""


def test_whatever_a_process_says_on_standard_error_each_line_is_one_json_object() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    entries = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(entry.keys() >= {"time", "level", "logger", "message"} for entry in entries)
    said = [(entry["level"], entry["logger"], entry["message"]) for entry in entries]
    warned = said.pop(1)
    assert warned[:2] == ("warning", "py.warnings")
    assert "UserWarning: a warning" in warned[2]
    assert said == [
        ("warning", "a.logger", "logged"),
        ("info", "stderr", "printed by a function"),
        ("info", "stderr", "two lines\nat once"),
        ("error", "antiphon", "the root error"),
        ("info", "stderr", "unfinished"),
        ("info", "stderr", "flushed"),
        ("info", "stderr", "goes on"),
        ("info", "stderr", "100 %"),
        ("info", "stderr", "caf\u00e9"),
        ("info", "stderr", "caf\u00e9 \\xff"),
        ("critical", "antiphon", "ZeroDivisionError: division by zero"),
        ("critical", "antiphon", "KeyError: 'nobody catches it'"),
        ("info", "stderr", "no end of line"),
    ]
    assert "Traceback" in entries[-2]["exception"]
    assert done.returncode == 1


def test_lines_for_people_come_back_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging("json")
    configure_logging("text")
    print("plain", file=sys.stderr)
    assert capfd.readouterr().err == "plain\n"


def test_numbers_that_json_does_not_know_are_texts() -> None:
    entry = json.loads(json_line("m", logger="l", loss=float("nan"), reward=0.5))
    assert (entry["loss"], entry["reward"]) == ("nan", 0.5)


def test_what_programs_ask_of_standard_error_is_there(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging("json")
    assert JsonStream(io.StringIO()).name == "<stderr>"
    assert sys.stderr.name == sys.stderr.stream.name  # type: ignore[attr-defined]
    assert (sys.stderr.encoding, sys.stderr.errors) == ("utf-8", "backslashreplace")
    assert sys.stderr.buffer.fileno() == sys.stderr.fileno()
    print("no end of line", end="", file=sys.stderr)
    assert capfd.readouterr().err == ""
    sys.stderr.flush()
    assert json.loads(capfd.readouterr().err)["message"] == "no end of line"


def test_a_child_may_be_given_the_stream() -> None:
    with Path("/dev/null").open("w") as file:
        stream = JsonStream(file)
        assert stream.fileno() == file.fileno()
        assert not stream.isatty()
    assert isinstance(stream, io.TextIOBase)
