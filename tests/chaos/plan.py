"""Which faults happen to whom, and at which byte, all from one seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tests.chaos.proxy import Direction

SERVICES = ("agent-0", "agent-1", "reward", "transition")
LEARNER = "learner"
Kind = Literal["kill", "stop", "restart", "slow", "cut", "corrupt", "flood"]
KINDS: tuple[Kind, ...] = ("kill", "stop", "restart", "slow", "cut", "corrupt", "flood")
OF_THE_LEARNER: tuple[Kind, ...] = ("kill", "stop", "restart", "flood")
"""Its connections are the services', so slow, cut and corrupted bytes are theirs."""

SHARE_OF_RUN = 0.25
"""Of the bytes of a calm run, how many the faults wait for, all together.

The run gets on while a victim is waited for, too.
"""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        number: Counted from 1.
        kind: What happens.
        victim: To whom.
        proxy: The service on whose connection the byte is counted.
        direction: Of that byte.
        after: It comes after so many bytes more.
        dice: What else of it is left to chance, a number in [0, 1).
    """

    number: int
    kind: Kind
    victim: str
    proxy: str
    direction: Direction
    after: int
    dice: float


def plan(seed: int, count: int, calm_bytes: Mapping[str, Mapping[Direction, int]]) -> list[Fault]:
    """Faults in order; every pair of kind and victim comes before one comes again.

    Args:
        seed: Fixes the plan.
        count: How many.
        calm_bytes: What passed each proxy, by direction, in a run without faults.
    """
    chance = random.Random(seed)
    pairs: list[tuple[Kind, str]] = []
    while len(pairs) < count:
        every = [(kind, service) for kind in KINDS for service in SERVICES]
        every += [(kind, LEARNER) for kind in OF_THE_LEARNER]
        chance.shuffle(every)
        pairs += every
    faults = []
    for number, (kind, victim) in enumerate(pairs[:count], start=1):
        proxy = chance.choice(SERVICES) if victim == LEARNER else victim
        direction: Direction = chance.choice(("up", "down"))
        most = 2 * SHARE_OF_RUN * calm_bytes[proxy][direction] / count
        after = int(chance.uniform(0, most))
        faults.append(Fault(number, kind, victim, proxy, direction, after, chance.random()))
    return faults
