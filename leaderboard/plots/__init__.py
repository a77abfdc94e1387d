"""Compute the plots of the leaderboard site as plain geometry."""
