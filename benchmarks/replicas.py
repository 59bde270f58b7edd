"""How throughput grows with generation replicas, and what one slow replica costs.

Every replica is a real gRPC server that sleeps for every token, in processes of their own. The work
grows with the replicas, so the time of a step, four seconds of sampling and all that a run does
around it, stays the same where growth is linear. One replica is
then made ten times slower: without it a step would take R / (R - 1) times as long.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from benchmarks.results import Row, write
from benchmarks.simulated.run import Job, Steps, measured
from benchmarks.simulated.serve import Services

WANTED = 0.9
SHARE = 1.1
"""What a slow replica may cost beside its share: a tenth."""
COUNTS = (1, 16, 64)
SLOW = 8
JOB = Job(batches=3, tokens=100, generations=4, services=Services(token_seconds=0.04, rows=4))


def job_of(replicas: int) -> Job:
    """One prompt for each replica."""
    return replace(JOB, replicas=replicas, tasks=replicas)


def slow_job() -> Job:
    """Seven prompts for each of eight replicas, of which one is slow; seven can share them."""
    services = replace(JOB.services, token_seconds=0.002, slow_factor=10.0)
    return replace(JOB, replicas=SLOW, tasks=SLOW * (SLOW - 1), services=services)


def main() -> None:
    """Measure and write the row; counts of replicas may be given."""
    counts = [int(count) for count in sys.argv[1:]] or COUNTS
    steps: dict[int, Steps] = {count: measured(job_of(count))[0] for count in counts}
    job = slow_job()
    (slow,) = measured(job)
    (even,) = measured(replace(job, services=replace(job.services, slow_factor=1.0)))
    linear = {count: steps[counts[0]].median / found.median for count, found in steps.items()}
    cost = slow.median / even.median / (SLOW / (SLOW - 1))
    share: dict[str, Any] = {
        "replicas": SLOW,
        "seconds_per_step": slow.median,
        "seconds_per_step_all_equal": even.median,
        "times_its_share": cost,
        "steps": slow.seconds,
    }
    worst = min(linear.values())
    write(
        Row(
            name="replicas",
            value=worst,
            unit="of linear",
            wanted=f"at least {WANTED} up to {counts[-1]} replicas; one that is 10 times slower "
            f"costs a step its share (at most {SHARE} times R / (R - 1))",
            holds=worst >= WANTED and cost <= SHARE,
            baseline="one replica, same run",
            details={
                "of_linear": linear,
                "seconds_per_step": {count: found.median for count, found in steps.items()},
                "seconds_to_sample": JOB.turn_seconds,
                "completions_per_replica_and_step": JOB.generations,
                "slow_replica": share,
            },
        )
    )


if __name__ == "__main__":
    main()
