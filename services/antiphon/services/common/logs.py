"""Logs on standard error, as lines for people or as JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["text", "json"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, exception, and what `extra` adds."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        fields |= {k: v for k, v in vars(record).items() if k not in _STANDARD}
        return json.dumps(fields, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Time, level, logger and message, then what `extra` adds as key=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The record as a line, without its exception."""
        extra = [f"{k}={v}" for k, v in vars(record).items() if k not in _STANDARD]
        return " ".join([super().formatMessage(record), *extra])


def configure_logging(format: LogFormat = "text", level: str = "info") -> None:  # noqa: A002
    """Sends every logger's records to standard error, in place of what was set before.

    Args:
        format: "text" for people, "json" for machines.
        level: "debug", "info", "warning" or "error".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
