"""Galaxies in colour: g, r and i as blue, green and red, stretched by asinh.

The stretch (Lupton et al. 2004, PASP 116, 133) shows faint outskirts beside bright cores and keeps
the colours of bright pixels.
"""

from functools import lru_cache
from typing import Any

import galsim
import numpy as np
from astropy.visualization import make_lupton_rgb

BANDS = "irg"  # as red, green, blue
STRETCH_SKY_NOISE = 10.0  # what is fainter, in sky noise of the r band, is shown linearly
SOFTENING = 8.0  # Lupton's Q: how strongly bright pixels are compressed
DARKEST_SKY_NOISE = -2.0  # black; a little below the sky's mean, so that noise is seen as noise


def compose_colours(stamps: np.ndarray, sky: Any) -> np.ndarray:
    """Compose colour pictures, uint8 (n, y, x, 3), from stored stamps.

    ``stamps`` are (n, bands, y, x) in units of the sky noise; ``sky`` are the ``SkyParameters``.

    All are stretched alike, so brightness can be compared between them. Row 0 is the bottom one:
    draw with ``origin="lower"``. Raises ValueError where a band is missing.
    """
    numbers = [sky.bands.index(band) for band in BANDS]
    fluxes = stamps[:, numbers].astype(np.float64) * _compute_noise_flux(sky)[:, None, None]
    r_noise = float(_compute_noise_flux(sky)[BANDS.index("r")])
    return np.stack(
        [
            make_lupton_rgb(
                *image,
                minimum=DARKEST_SKY_NOISE * r_noise,
                stretch=STRETCH_SKY_NOISE * r_noise,
                Q=SOFTENING,
            )
            for image in fluxes
        ]
    )


def _compute_noise_flux(sky: Any) -> np.ndarray:
    """Return the flux density of one sky noise per band, (3,), in units of AB magnitude 0."""
    numbers = [sky.bands.index(band) for band in BANDS]
    electrons = np.sqrt(np.array(sky.sky_electrons))[numbers]
    seconds = np.array(sky.exposure_seconds)[numbers]
    return np.asarray(electrons / (seconds * sky.collecting_area_cm2 * _compute_ab_zero_rates()))


@lru_cache(maxsize=1)
def _compute_ab_zero_rates() -> np.ndarray:
    """Return the photons per second and cm² of AB magnitude 0 through each of BANDS, (3,)."""
    bandpasses = [
        galsim.Bandpass(f"LSST_{band}.dat", wave_type="nm").withZeropoint("AB") for band in BANDS
    ]
    return np.array([10 ** (0.4 * bandpass.zeropoint) for bandpass in bandpasses])
