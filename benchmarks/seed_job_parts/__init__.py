"""What `benchmarks.seed_job` is made of."""
