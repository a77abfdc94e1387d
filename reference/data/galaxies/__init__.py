"""Simulated galaxies: images, population, colours, FITS."""

from reference.data.galaxies.stamps import folder, parameters_of, prepare

__all__ = ["folder", "parameters_of", "prepare"]
