"""The measurement that `cepheid measure speed galaxy_vae` adds is that of all galaxies."""

from cepheid.benchmarks.galaxy_shape.speed import MEASUREMENTS as MEASUREMENTS
