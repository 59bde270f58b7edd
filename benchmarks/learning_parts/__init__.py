"""Parts of `benchmarks/learning.py`."""
