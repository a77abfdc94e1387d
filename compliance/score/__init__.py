"""Compute scores, their intervals, comparisons and the RCP test."""
