"""Evaluating the policies: when, on what, and what it came to."""
