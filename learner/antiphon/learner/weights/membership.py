"""Keeps an agent's replicas as they are in the world: who joins, leaves, drains and comes back.

Names are resolved again every few seconds, and at once when a replica is lost. A new address is
admitted (it must fit the agent as the first ones did), brought to the published weights, and then
asked like the others, in the middle of a step too. One that says NOT_SERVING, or whose address is
gone from the name, gets no more chunks; what it is at it may finish. One that cannot be reached is
sought until it is back, with growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.names import UnresolvedError, is_name, resolve
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.types import FieldError
from antiphon.learner.concurrency import log_failure
from antiphon.learner.start_wait import POLL_SECONDS, StartWait
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import Replica, Replicas

logger = logging.getLogger(__name__)

PAUSES = RetryPolicy(initial_backoff=0.25, max_backoff=30.0)
"""Pauses between attempts to bring a replica back."""
HEALTH_SECONDS = 1.0
"""Pause before the health of a lost connection is watched again."""
RENEW_SECONDS = 15.0
"""Pause between two calls that keep a service from other runs, a fourth of the usual lease."""


def is_elastic(endpoints: Sequence[Endpoint]) -> bool:
    """Whether an agent's replicas may come and go: there are several, or a name for them."""
    return len(endpoints) > 1 or any(map(is_name, endpoints))


async def resolve_all(
    endpoints: Sequence[Endpoint], *, timeout: float, start_timeout: float = 0.0
) -> list[Endpoint]:
    """The processes behind addresses and names, each once.

    Args:
        endpoints: Addresses and names.
        timeout: Seconds for each look.
        start_timeout: Seconds in which names that are not known yet are looked up again.

    Raises:
        UnresolvedError: A name is not known, or nobody is behind it.
        ValueError: A name cannot be read.
    """
    absence = StartWait(start_timeout)
    while True:
        try:
            found = {
                e.address: e for name in endpoints for e in await resolve(name, timeout=timeout)
            }
            if not found:
                raise UnresolvedError(endpoints[0].address, "it lists no address")
        except UnresolvedError as error:
            if absence.over:
                raise
            absence.tell(str(error))
            await asyncio.sleep(POLL_SECONDS)
        else:
            return list(found.values())


class Membership:
    """Follows one agent's replicas while a run lasts.

    Args:
        endpoints: Addresses and names.
        replicas: Kept as they are in the world.
        publisher: Brings replicas to the published weights.
        connect: Opens a channel to an address.
        admit: Asks a replica what it runs and has loaded, and notes it.
        every: Seconds between two looks at the names.
        timeout: Seconds of one look.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        replicas: Replicas,
        publisher: AgentPublisher,
        *,
        connect: Callable[[Endpoint], Replica],
        admit: Callable[[Replica], Awaitable[None]],
        every: float,
        timeout: float,
    ) -> None:
        self._endpoints = endpoints
        self._replicas = replicas
        self._publisher = publisher
        self._connect = connect
        self._admit = admit
        self._every = every
        self._timeout = timeout
        self._followed: dict[str, asyncio.Task[None]] = {}

    def start(self, stack: AsyncExitStack) -> None:
        """Follow until the stack is closed."""
        tasks = (
            self._in_background(self.follow(), "following the replicas"),
            self._in_background(self._keep_leases(), "keeping the leases"),
        )

        async def end() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        stack.push_async_callback(end)

    async def follow(self) -> None:
        """Never return; an error of a replica concerns that replica alone."""
        for replica in self._replicas:
            self._begin(replica)
        try:
            while True:
                await self._look()
                await self._pause()
        finally:
            for task in self._followed.values():
                task.cancel()
            await asyncio.gather(*self._followed.values(), return_exceptions=True)

    async def _keep_leases(self) -> None:
        """Call those with weights of this run: they stay its in a long update or a pause."""
        renewing = dict[Replica, asyncio.Task[None]]()
        try:
            while True:
                await asyncio.sleep(RENEW_SECONDS)
                renewing = {r: task for r, task in renewing.items() if not task.done()}
                for replica in self._replicas.live:
                    ours = replica.bound and replica.acknowledged.version
                    if ours and replica not in renewing:
                        renewing[replica] = self._in_background(
                            self._renew(replica), f"renewing the lease of {replica.address}"
                        )
        finally:
            for task in renewing.values():
                task.cancel()
            await asyncio.gather(*renewing.values(), return_exceptions=True)

    async def _renew(self, replica: Replica) -> None:
        try:
            await replica.client.renew_lease(replica.acknowledged, self._timeout)
        except (CallError, ContractError, FieldError) as error:
            logger.info("the lease of %s is not renewed: %s", replica.address, error)
        except asyncio.CancelledError:  # a channel that is closed cancels its calls too
            logger.info("the lease of %s is not renewed: its channel is closed", replica.address)
            raise

    async def _pause(self) -> None:
        """Wait for the next look: a while, or until fewer replicas are left than were."""
        if not any(map(is_name, self._endpoints)):
            await asyncio.Event().wait()
        live = len(self._replicas.live)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._every):
                await self._replicas.until(lambda: len(self._replicas.live) < live)

    async def _look(self) -> None:
        """Take in whoever is new behind the names, and let go whoever is gone."""
        try:
            found = await resolve_all(self._endpoints, timeout=self._timeout)
        except (UnresolvedError, ValueError) as error:
            # A name server that is away takes nobody away.
            logger.warning("agent %d keeps its replicas: %s", self._replicas.agent, error)
            return
        addresses = {endpoint.address for endpoint in found}
        for endpoint in found:
            if endpoint.address not in self._followed:
                self._join(endpoint)
        for replica in self._replicas:
            if replica.address not in addresses:
                self._leave(replica)

    def _join(self, endpoint: Endpoint) -> None:
        try:
            replica = self._connect(endpoint)
        except FieldError as error:  # a certificate that is being renewed, and so not readable
            logger.error("%s stays left out: %s", endpoint.address, error)
            return
        replica.reachable = replica.serving = False
        logger.info("agent %d: %s joins", self._replicas.agent, replica.address)
        self._replicas.add(replica)
        self._replicas.count("joined")
        self._begin(replica)

    def _begin(self, replica: Replica) -> None:
        self._followed[replica.address] = self._in_background(
            self._follow(replica), f"following {replica.address}"
        )

    def _in_background(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"agent {self._replicas.agent}: {what}")
        task.add_done_callback(log_failure)
        return task

    def _leave(self, replica: Replica) -> None:
        """Ask it no more; it is forgotten once it has ended what it is at."""
        followed = self._followed.pop(replica.address, None)
        if followed is None:
            return
        followed.cancel()
        logger.info("agent %d: %s leaves", self._replicas.agent, replica.address)
        replica.reachable = replica.serving = False
        self._replicas.count("left")
        key = f"{replica.address} leaving {id(replica)}"
        self._followed[key] = self._in_background(self._forget(replica, key), key)

    async def _forget(self, replica: Replica, key: str) -> None:
        await self._replicas.until(lambda: not (replica.outstanding or replica.pushes))
        self._replicas.remove(replica)
        await replica.client.close()
        self._followed.pop(key, None)

    async def _follow(self, replica: Replica) -> None:
        """Watch one replica's health and bring it back whenever it can be asked again."""
        health = self._in_background(
            self._watch_health(replica), f"watching the health of {replica.address}"
        )
        pauses = 0
        try:
            while True:
                await self._replicas.until(lambda: replica.serving and not replica.reachable)
                await self._bring(replica)
                pauses = 0 if replica.reachable and not replica.failures else pauses + 1
                if pauses:
                    await asyncio.sleep(PAUSES.pause(pauses))
        finally:
            health.cancel()
            await asyncio.gather(health, return_exceptions=True)

    async def _watch_health(self, replica: Replica) -> None:
        while True:
            try:
                async for serving in replica.client.watch_health():
                    self._tell_serving(replica, serving)
            except (CallError, FieldError) as error:
                logger.info("%s: its health is not known: %s", replica.address, error)
            # The process is gone, or another one comes in its place.
            self._tell_serving(replica, False)
            await asyncio.sleep(HEALTH_SECONDS)

    def _tell_serving(self, replica: Replica, serving: bool) -> None:
        if serving == replica.serving:
            return
        replica.serving = serving
        if not serving and replica.reachable:
            replica.reachable = False
            replica.trouble = f"{replica.address} does not serve"
            logger.info("%s does not serve: it is asked no more until it does", replica.address)
            self._replicas.count("drained")
        self._replicas.tell()

    async def _bring(self, replica: Replica) -> None:
        try:
            await self._admit(replica)
            await self._publisher.bring(replica)
        except (CallError, ContractError) as error:
            replica.trouble = str(error)
            logger.warning("%s stays left out: %s", replica.address, error)
        except FieldError as error:
            replica.trouble = f"it does not fit: {error}"
            logger.error("%s stays left out: %s", replica.address, replica.trouble)
        if replica.reachable:
            logger.info("agent %d: %s is asked", self._replicas.agent, replica.address)
