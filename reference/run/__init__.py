"""Run a benchmark once: configuration, the timed loops, the run log."""
