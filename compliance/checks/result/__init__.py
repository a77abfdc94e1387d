"""Checks of the run logs of one result against each other and against the reference."""
