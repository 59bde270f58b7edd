"""Dashboards, alerts and recording rules, and what writes and draws them."""
