"""Tasks that belong together: the first failure ends the others and travels as it is.

A task in the background, which nobody awaits, tells its failure to the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

logger = logging.getLogger(__name__)


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """An `asyncio.TaskGroup` that raises its first failure alone, not inside an ExceptionGroup."""
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        failure = _first(errors)
    if failure is not None:
        raise failure


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def log_failure(task: asyncio.Task[Any]) -> None:
    """A task's done-callback that logs the error with which it ended, if it did."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s ended with an error", task.get_name(), exc_info=error)
