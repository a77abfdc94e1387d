"""Run a benchmark: the timed loops, the run log, the result folder."""
