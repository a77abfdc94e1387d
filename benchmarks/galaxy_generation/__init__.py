"""Generating new galaxies, timed."""
