"""Galaxy shape estimation: e1 and e2 of a galaxy, with their covariance, from a six-band stamp."""
