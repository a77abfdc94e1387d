"""Simulated galaxies: the generator `galaxies` of definitions.

A definition's ``data.generator`` names this package; ``cepheid.reference.data`` says what it must
provide.
"""

from cepheid.reference.data.galaxies.stamps import (
    LABELS,
    LSST_SECONDS,
    LSST_SKY,
    TEMPLATES,
    Galaxies,
    SkyParameters,
    compute_component_electrons,
    compute_electrons,
    draw,
    draw_galaxy,
    draw_with_galsim,
    load,
    parameters_of,
    prepare,
)

__all__ = [
    "LABELS",
    "LSST_SECONDS",
    "LSST_SKY",
    "TEMPLATES",
    "Galaxies",
    "SkyParameters",
    "compute_component_electrons",
    "compute_electrons",
    "draw",
    "draw_galaxy",
    "draw_with_galsim",
    "load",
    "parameters_of",
    "prepare",
]
