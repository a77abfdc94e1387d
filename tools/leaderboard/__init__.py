"""The parts of `cepheid leaderboard`: the folder of a site, its server, and what it watches."""
