"""Saving a run whole, and going on from there."""
