"""What the benchmarks of the update share."""
