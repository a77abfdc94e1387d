"""Shallow baselines: what reaches a target without the task, by known means and little effort."""
