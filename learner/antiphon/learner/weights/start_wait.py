"""Says that a run waits for a service to start."""

from __future__ import annotations

import logging
import time

logger = logging.getLogger(__name__)

QUIET_SECONDS = 2.0


class StartWait:
    """Tells once why a service is waited for, when it has been for two seconds.

    Args:
        longest: Seconds that it is waited for at most (`start_timeout`).
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._began = time.monotonic()
        self._told = False

    def tell(self, why: str) -> None:
        """It is not there yet; why not."""
        if self._told or time.monotonic() - self._began < QUIET_SECONDS:
            return
        self._told = True
        logger.warning(
            "waiting for a service, %g s at most (start_timeout): %s", self._longest, why
        )
