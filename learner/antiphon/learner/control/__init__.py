"""Steering and watching a run from outside, and its signals."""
