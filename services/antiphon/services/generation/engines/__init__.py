"""Engines that another program runs, and what they share."""
