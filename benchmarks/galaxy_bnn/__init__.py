"""Galaxy shape estimation with a Bayesian network: Gaussian weights, and what they do not know."""
