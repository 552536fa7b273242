"""Trackers: show a run's metrics and episodes in other tools."""
