"""Putting a run together, the training loop, and taking everything down."""
