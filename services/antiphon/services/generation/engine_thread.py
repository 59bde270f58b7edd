"""One thread that works through jobs in order of arrival."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

logger = logging.getLogger(__name__)


class Job(Protocol):
    """Something to do in the engine's thread. It reports its own errors to whoever waits."""

    def run(self) -> None:
        """Does it."""
        ...

    def fail(self, error: BaseException) -> None:
        """Tells whoever waits that it will not be done."""
        ...


J = TypeVar("J", bound=Job)


class EngineThread:
    """Runs jobs one by one; `seconds_since_step` says how long ago it last got on.

    Args:
        clock: Seconds that only grow.
        on_idle: Called in the thread when the last job in sight is done.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._on_idle = on_idle
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._busy = False
        self._last_step = clock()
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    @property
    def closing(self) -> bool:
        """Whether jobs should give up."""
        return self._closing

    @property
    def waiting(self) -> int:
        """How many jobs wait for their turn."""
        return len(self._jobs)

    @property
    def seconds_since_step(self) -> float:
        """Seconds since the last step while there is work; 0 while idle."""
        with self._changed:
            return self._clock() - self._last_step if self._busy or self._jobs else 0.0

    def start(self) -> None:
        """Starts working."""
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queues a job; once the thread is closing the job fails at once."""
        with self._changed:
            if not self._closing:
                if not self._busy and not self._jobs:
                    self._last_step = self._clock()
                self._jobs.append(job)
                self._changed.notify()
                return
        job.fail(RuntimeError("the engine has stopped"))

    def take(self, kind: type[J]) -> J | None:
        """Takes the first waiting job of a kind out of turn; to be called by a running job."""
        with self._changed:
            for job in self._jobs:
                if isinstance(job, kind):
                    self._jobs.remove(job)
                    return job
        return None

    def stepped(self) -> None:
        """Notes that the running job has got on."""
        self._last_step = self._clock()

    def stop(self, timeout: float) -> None:
        """Fails what waits, lets the running job see `closing`, and waits for the thread's end.

        A step that does not end within `timeout` seconds is left behind; the thread is a daemon.
        """
        with self._changed:
            self._closing = True
            dropped = list(self._jobs)
            self._jobs.clear()
            self._changed.notify()
        for job in dropped:
            job.fail(RuntimeError("the engine has stopped"))
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.wait_for(lambda: self._closing or self._jobs)
                if self._closing:
                    return
                job = self._jobs.popleft()
                self._busy = True
                self._last_step = self._clock()
            try:
                job.run()
            except BaseException as error:  # The thread outlives any job.
                logger.exception("a job of the engine failed")
                job.fail(error)
            del job  # What it holds must not stay until the next one comes.
            if not self._jobs:
                self._on_idle()
