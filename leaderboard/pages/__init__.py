"""Build the pages of the leaderboard site, one module for each kind of page."""
