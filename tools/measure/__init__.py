"""`cepheid measure`: measure speed, convergence and costs of the reference."""
