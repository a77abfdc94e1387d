"""Judges run logs and submissions. Imports the rules and no deep-learning framework."""
