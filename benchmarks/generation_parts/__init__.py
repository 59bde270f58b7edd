"""What `benchmarks.generation` runs: the work, each side's process, and how they are driven."""
