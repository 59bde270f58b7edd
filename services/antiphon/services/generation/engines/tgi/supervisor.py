"""Which server answers now, how another one takes over, and that a crashed one comes back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

from antiphon.clients.types import LoadedWeights
from antiphon.services.common.errors import StartError
from antiphon.services.generation.choices import Restart
from antiphon.services.generation.engines.program import answers
from antiphon.services.generation.engines.tgi.client import TgiLimits
from antiphon.services.generation.engines.tgi.server import RunningServer

logger = logging.getLogger(__name__)

Launch: TypeAlias = Callable[[Path, LoadedWeights, Callable[[], bool]], RunningServer]

_WATCH_SECONDS = 0.5
_LAUNCHES = 3
_LONGEST_PAUSE_SECONDS = 30.0


class Route:
    """A server with its connections and how many requests it has."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.client = server.connect()
        self.requests = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self._last_step = time.monotonic()

    @property
    def seconds_since_step(self) -> float:
        """Seconds since the server got on, while it has requests; 0 while it has none."""
        return time.monotonic() - self._last_step if self.requests else 0.0

    def stepped(self) -> None:
        """Notes that the server has got on."""
        self._last_step = time.monotonic()

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Counts a request."""
        if not self.requests:
            self.stepped()
        self.requests += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.requests -= 1
            if not self.requests:
                self.idle.set()

    async def end(self) -> None:
        """Lets its requests finish, then ends the server where it is ours."""
        await self.idle.wait()
        await self.close()

    async def close(self) -> None:
        """Drops connections and ends the server where it is ours."""
        await self.client.close()
        if self.server.program is not None:
            await asyncio.to_thread(self.server.program.end)


class Supervisor:
    """Has one server that answers.

    Args:
        launch: Starts one on a folder, blocking; None where the server is somebody else's.
        server: That runs already.
        restart: "rolling" starts the next one beside the present one, "stop-first" after its end;
            one whose weights must not be sampled is not kept beside the next.
    """

    def __init__(
        self,
        launch: Launch | None,
        server: RunningServer,
        restart: Restart = "rolling",
    ) -> None:
        self._launch = launch
        self._restart = restart
        self._route = Route(server)
        self._open = asyncio.Event()
        self._open.set()
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    @property
    def loaded(self) -> LoadedWeights:
        """What is served; the default where nothing is that may be sampled."""
        return self._route.server.loaded

    @property
    def limits(self) -> TgiLimits:
        """Those of the server."""
        return self._route.server.limits

    @property
    def seconds_since_step(self) -> float:
        """Seconds since the server got on, while it has requests."""
        return self._route.seconds_since_step

    @asynccontextmanager
    async def route(self) -> AsyncGenerator[Route]:
        """The server to ask; it stays until the block ends."""
        while not self._open.is_set():  # Another swap may have come before this was woken.
            await self._open.wait()
        route = self._route
        with route.used():
            yield route

    async def replace(self, folder: Path, loaded: LoadedWeights) -> float:
        """Has a new server take over; returns the seconds without one.

        Raises:
            StartError: The new server does not come up; the old one serves on.
        """
        async with self._turn:
            await self._retired()
            old = self._route
            sampled = bool(old.server.loaded.digest)
            if self._restart == "rolling" and sampled:
                return await self._roll(old, folder, loaded)
            pause = await self._stop_first(old, folder, loaded)
            return pause if sampled else 0.0

    async def _roll(self, old: Route, folder: Path, loaded: LoadedWeights) -> float:
        self._take(await self._launched(folder, loaded))
        self._in_background(old.end())
        return 0.0

    async def _stop_first(self, old: Route, folder: Path, loaded: LoadedWeights) -> float:
        self._open.clear()
        await old.end()
        began = time.monotonic()
        try:
            server = await self._launched(folder, loaded)
        except StartError:
            # Where this fails too, the watch goes on trying.
            with contextlib.suppress(StartError):
                await self._revive(old)
            raise
        self._take(server)
        return time.monotonic() - began

    async def _launched(self, folder: Path, loaded: LoadedWeights) -> RunningServer:
        """A new server; one that does not come up is tried again."""
        assert self._launch is not None
        for attempt in range(1, _LAUNCHES + 1):
            try:
                return await asyncio.to_thread(self._launch, folder, loaded, lambda: self._stopping)
            except StartError as error:
                if attempt == _LAUNCHES or self._stopping:
                    raise
                logger.warning("attempt %d of %d: %s", attempt, _LAUNCHES, error)
        raise AssertionError("unreachable")

    def _take(self, server: RunningServer) -> None:
        self._route = Route(server)
        self._open.set()

    async def _retired(self) -> None:
        """Waits until servers that were replaced earlier are gone, and with them their memory."""
        ending = [task for task in self._tasks if task.get_name() == "retire"]
        if ending:
            await asyncio.wait(ending)

    def _in_background(self, work: Coroutine[Any, Any, None], name: str = "retire") -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def start(self) -> None:
        """Begins to watch the server; to be called in the event loop."""
        self._in_background(self._watch(), "watch")

    async def _watch(self) -> None:
        """Brings back a server that has ended by itself, and notes while a busy one is healthy."""
        failures = 0
        while True:
            await asyncio.sleep(min(_WATCH_SECONDS * 2**failures, _LONGEST_PAUSE_SECONDS))
            try:
                await self._look_after()
                failures = 0
            except StartError as error:
                failures += 1
                logger.error("the engine does not come back: %s", error)
            except Exception:
                # Without its watch a server that ends would be gone for good.
                failures += 1
                logger.exception("the engine is not looked after; it is tried again")

    async def _look_after(self) -> None:
        route = self._route
        if self._turn.locked():
            return
        program = route.server.program
        if program is not None and program.exit_code is not None:
            async with self._turn:
                await self._revive(route)
        elif route.requests and await asyncio.to_thread(answers, f"{route.server.url}/health"):
            route.stepped()

    async def _revive(self, ended: Route) -> None:
        """Starts what a server that is gone has served."""
        server = ended.server
        if self._route is not ended or server.program is None or server.folder is None:
            return
        self._open.clear()
        logger.warning(
            "the engine ended with code %s; it is started again", server.program.exit_code
        )
        fresh = await self._launched(server.folder, server.loaded)
        self._take(fresh)
        await ended.close()

    async def stop(self) -> None:
        """Ends the server where it is ours, and whatever is under way."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._route.close()
