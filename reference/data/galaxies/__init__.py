"""Simulated galaxies: the generator `galaxies` of definitions.

A definition's ``data.generator`` names this package; ``reference.data`` says what it must provide.
"""

from reference.data.galaxies.stamps import (
    LABELS,
    LSST_SECONDS,
    LSST_SKY,
    TEMPLATES,
    Galaxies,
    SkyParameters,
    component_electrons,
    draw,
    draw_with_galsim,
    folder,
    folder_name,
    galaxy_at,
    load,
    noise_free_electrons,
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
    "component_electrons",
    "draw",
    "draw_with_galsim",
    "folder",
    "folder_name",
    "galaxy_at",
    "load",
    "noise_free_electrons",
    "parameters_of",
    "prepare",
]
