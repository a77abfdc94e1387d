"""Measurements of speed that only one benchmark has, by its name."""
