"""The leaderboard: rows of results, plots, and the pages of a site that needs no server."""
