"""A run of the product in one process: same loop, same engine, no wire."""
