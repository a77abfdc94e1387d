"""Run every check of a round over what was read: whole packages, in parallel, or a growing log."""
