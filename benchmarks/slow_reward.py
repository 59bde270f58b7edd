"""What slow rewards cost: each takes as long as a turn's generation, the service many at once.

A rollout batch of several trees with two turns, against services that sleep and an update that
sleeps. The baseline is the same run with rewards that cost nothing.

At `max_staleness` 0 the critical path of a step is calculated: per turn a generation and the scores
of the nodes that end last, then the update. At 1 two rollout batches are under way: while one is
scored the other is sampled. A batch is begun when all but one before it are published, so two steps
take at least as long as one batch from its begin to its publish, and a step no less than either
resource is busy with it:

    step >= max(sampling, update, (sampling + scoring + update) / 2)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.results import Row, require, write
from benchmarks.simulated.run import Job, measured
from benchmarks.simulated.serve import Services

WANTED = 1.15
WITHIN = 1.05
TURN = 0.6
UPDATES = (0.1, 1.0)
"""Seconds of the update, as a share of a rollout batch's sampling."""
HEADLINE = 0.1
JOB = Job(
    batches=6,
    tasks=4,
    turns=2,
    generations=4,
    services=Services(token_seconds=TURN / 50, rows=1024, on_swap="continue"),
)


def calculated(job: Job) -> float:
    """Seconds of a step, as the docstring says."""
    sampling = job.turns * job.turn_seconds
    scoring = job.turns * job.services.score_seconds
    if job.staleness == 0:
        return sampling + scoring + job.update_seconds
    latency = sampling + scoring + job.update_seconds
    return max(sampling, job.update_seconds, latency / (job.staleness + 1))


def row(update: float) -> dict[str, dict[str, float]]:
    """Seconds of a step by `max_staleness`, without and with slow rewards, and calculated."""
    stale = (0, 1) if update == HEADLINE else (1, 2)
    quick = [
        replace(JOB, staleness=s, update_seconds=update * JOB.turns * JOB.turn_seconds)
        for s in stale
    ]
    slow = [
        replace(job, services=replace(job.services, score_seconds=JOB.turn_seconds))
        for job in quick
    ]
    found = {}
    for free, asked, job in zip(measured(*quick), measured(*slow), slow, strict=True):
        bound = job.staleness
        require(asked.staleness <= bound, f"staleness {asked.staleness} at max_staleness {bound}")
        found[f"max_staleness_{bound}"] = {
            "rewards_free": free.mean,
            "rewards_slow": asked.mean,
            "rewards_slow_calculated": calculated(job),
            "times": asked.mean / free.mean,
            "largest_staleness": asked.staleness,
        }
    return found


def main() -> None:
    """Measure and write the row."""
    rows: dict[str, Any] = {f"update_{update}_of_sampling": row(update) for update in UPDATES}
    first = rows[f"update_{HEADLINE}_of_sampling"]
    times = first["max_staleness_1"]["times"]
    path = first["max_staleness_0"]
    off = path["rewards_slow"] / path["rewards_slow_calculated"]
    write(
        Row(
            name="slow_reward",
            value=times,
            unit="times the step with free rewards",
            wanted=f"at most {WANTED} at max_staleness 1; the calculated path at 0",
            holds=times <= WANTED and off <= WITHIN,
            baseline="the same run with rewards that cost nothing",
            details={
                "turn_seconds": JOB.turn_seconds,
                "score_seconds": JOB.turn_seconds,
                "turns": JOB.turns,
                "tasks": JOB.tasks,
                "times_the_calculated_path_at_max_staleness_0": off,
                **rows,
            },
        )
    )


if __name__ == "__main__":
    main()
