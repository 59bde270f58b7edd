"""What sampling ahead gains where sampling and update take the same time.

One run at `max_staleness` 0 and one at 1, with services that sleep for every token and an update
that sleeps as long. Twice as fast is the limit: one of the two is always waited for.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from benchmarks.results import Row, write
from benchmarks.simulated.run import Job, measured
from benchmarks.simulated.serve import Services

WANTED = 1.8
JOB = Job(
    batches=8,
    turns=2,
    agents=2,
    tokens=50,
    update_seconds=1.0,
    services=Services(token_seconds=0.01),
)


def main() -> None:
    """Measure and write the row."""
    runs = measured(*(replace(JOB, staleness=bound) for bound in (0, 1, 0, 1)))
    for run, bound in zip(runs, (0, 1, 0, 1), strict=True):
        took = statistics.median(run.update_seconds)
        if abs(took - JOB.update_seconds) > 0.1 * JOB.update_seconds:
            raise RuntimeError(f"an update took {took:.2f} s, wanted {JOB.update_seconds}")
        if run.staleness != bound:
            raise RuntimeError(f"staleness {run.staleness}, wanted exactly {bound}")
    waiting, ahead = (
        statistics.mean((first.mean, again.mean))
        for first, again in ((runs[0], runs[2]), (runs[1], runs[3]))
    )
    gain = waiting / ahead
    write(
        Row(
            name="staleness",
            value=gain,
            unit="times faster",
            wanted=f"at least {WANTED} (the limit is 2), staleness never above the bound",
            holds=gain >= WANTED,
            baseline="max_staleness 0, same services and update, same run",
            details={
                "seconds_per_step": {"max_staleness_0": waiting, "max_staleness_1": ahead},
                "seconds_to_sample": JOB.turns * JOB.turn_seconds,
                "seconds_to_update": JOB.update_seconds,
                "largest_staleness": {"max_staleness_0": 0, "max_staleness_1": 1},
                "steps": JOB.batches,
            },
        )
    )


if __name__ == "__main__":
    main()
