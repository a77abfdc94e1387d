"""Checks of one run log: form, order, clocks, cadence, quality, hyperparameters."""
