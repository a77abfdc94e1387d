"""Compute scores and their intervals, standings, comparisons and the RCP test."""
