"""Logs on standard error, as lines for people or as JSON for machines."""

from __future__ import annotations

import atexit
import codecs
import io
import json
import logging
import math
import re
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LogFormat = Literal["text", "json"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FAILURES = ("antiphon: ", "Error: ")
"""How what a command fails with begins, and what is wrong with its options."""
_DRAWN_OVER = re.compile(r"[^\n]*\r(?=[^\r\n])")
"""The beginning of a line that what comes after it is drawn over."""
_DRAWN_AGAIN = re.compile(r"\r(?!\n)")


def json_line(message: str, *, logger: str, level: str = "info", **fields: Any) -> str:
    """One JSON object: time, level, logger, message, and what `fields` add."""
    return _json_line(datetime.now(UTC).timestamp(), level, logger, message, fields)


def _json_line(
    seconds: float, level: str, logger: str, message: str, fields: dict[str, Any]
) -> str:
    head: dict[str, Any] = {
        "time": datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds"),
        "level": level,
        "logger": logger,
        "message": message,
    }
    # Escaped, a line is one line of JSON whatever the stream's encoding.
    added = {name: _known(value) for name, value in fields.items() if name not in head}
    return json.dumps(head | added, default=str)


def _known(value: Any) -> Any:
    """The value with what JSON has no name for, such as NaN, as text."""
    if isinstance(value, dict):
        return {str(key): _known(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_known(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, exception, and what `extra` adds."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        fields: dict[str, Any] = {}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        fields |= {k: v for k, v in vars(record).items() if k not in _STANDARD}
        level, message = record.levelname.lower(), record.getMessage()
        return _json_line(record.created, level, record.name, message, fields)


class TextFormatter(logging.Formatter):
    """Time, level, logger and message, then what `extra` adds as key=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The record as a line, without its exception."""
        extra = [f"{k}={v}" for k, v in vars(record).items() if k not in _STANDARD]
        return " ".join([super().formatMessage(record), *extra])


class JsonStream(io.TextIOBase):
    """A text stream that puts JSON objects on another: what is written up to a line's end is one.

    A flush ends a line too, but for one that is drawn again and again, as a progress bar is: of
    that the last state is told.

    Args:
        stream: Where they go.

    Attributes:
        buffer: Takes bytes, for those who write there; they are read as UTF-8.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream
        self.buffer = _Bytes(self)
        self._unfinished = ""
        self._drawn_again = False
        self._lock = threading.RLock()  # A signal may come in the middle of a line.

    @property
    def name(self) -> str:
        """Of the stream beneath."""
        return getattr(self.stream, "name", "<stderr>")

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of what is written."""
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """What becomes of characters that cannot be written; JSON writes them all."""
        return "backslashreplace"

    def reconfigure(self, **settings: object) -> None:  # noqa: ARG002 - io.TextIOWrapper has them
        """Change nothing but flush: JSON is the same in every encoding."""
        self.flush()

    def writable(self) -> bool:
        """Whether it can be written to."""
        return True

    def fileno(self) -> int:
        """Of the stream beneath, for a child that is to write there."""
        return self.stream.fileno()

    def write(self, text: str, /) -> int:
        """Take text in; what has a line's end at its end is told."""
        with self._lock:
            self._unfinished += text
            if _DRAWN_AGAIN.search(text):
                self._drawn_again = True
                self._unfinished = _DRAWN_OVER.sub("", self._unfinished)
            if text.endswith("\n"):
                self._tell()
        return len(text)

    def tell_line(self, line: str) -> None:
        """Put a line there that is JSON by now."""
        self.stream.write(line + "\n")
        self.stream.flush()

    def flush(self) -> None:
        """Tell what no line's end came after, but for a line that is being drawn again."""
        with self._lock:
            if not self._drawn_again:
                self._tell()

    def tell_rest(self) -> None:
        """Tell what no line's end came after."""
        with self._lock:
            self._tell()

    def _tell(self) -> None:
        text, self._unfinished = _DRAWN_OVER.sub("", self._unfinished).strip("\r\n"), ""
        self._drawn_again = False
        failure = next((begin for begin in _FAILURES if text.startswith(begin)), None)
        if failure is not None:
            message = text.removeprefix(failure)
            self.tell_line(json_line(message, logger="antiphon", level="error"))
        elif text.strip():
            self.tell_line(json_line(text, logger="stderr"))


class _Bytes(io.BufferedIOBase):
    """A binary stream whose text goes to a `JsonStream`."""

    def __init__(self, text: JsonStream) -> None:
        super().__init__()
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._text.fileno()

    def write(self, data: ReadableBuffer, /) -> int:
        self._text.write(self._decoder.decode(memoryview(data)))
        return memoryview(data).nbytes

    def flush(self) -> None:
        self._text.flush()


def configure_logging(format: LogFormat = "text", level: str = "info") -> None:  # noqa: A002
    """Sends every logger's records to standard error, in place of what was set before.

    With "json" every line of it is one JSON object: warnings, exceptions that nobody caught, and
    what is printed there by whomever, too. What native code writes is not.

    Args:
        format: "text" for people, "json" for machines.
        level: "debug", "info", "warning" or "error".
    """
    stream: Any = sys.stderr
    if isinstance(stream, JsonStream):
        stream = sys.stderr = stream.stream
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(format == "json")
    if format == "json":
        printed = JsonStream(stream)
        atexit.register(printed.tell_rest)
        sys.stderr = printed
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_in_thread


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    logging.getLogger("antiphon").critical(
        "%s: %s", kind.__name__, error, exc_info=(kind, error, trace)
    )


def _log_uncaught_in_thread(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_value is not None and failure.exc_type is not SystemExit:
        _log_uncaught(failure.exc_type, failure.exc_value, failure.exc_traceback)
