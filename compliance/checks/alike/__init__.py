"""T19: how near runs are to each other in how their quality moves."""
