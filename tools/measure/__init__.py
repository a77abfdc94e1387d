"""`cepheid measure`: measure speed, sweeps, epochs, costs and formats of the reference."""
