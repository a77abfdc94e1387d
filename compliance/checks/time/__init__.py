"""Checks of time in one log: its clocks, its intervals, the pace of the run."""
