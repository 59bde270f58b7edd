"""Parts of the benchmarks of weight pushes."""
