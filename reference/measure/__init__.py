"""Measure the reference: speed, sweeps, epochs, costs, targets."""
