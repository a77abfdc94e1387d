"""The measurement that `cepheid measure speed galaxy_vae` adds is that of all galaxies."""

from cepheid.measure.studies.speed_by_benchmark.galaxy_shape import MEASUREMENTS as MEASUREMENTS
