"""Colours of galaxies: red is red, faint is visible, bright does not burn out."""

import numpy as np
import pytest

pytest.importorskip("galsim", reason="needs the extra galsim")

from cepheid.reference.data.galaxies import SkyParameters, colour

SKY = SkyParameters(samples=1, pixels=8)


def stamp(**noise_units: float) -> np.ndarray:
    made = np.zeros((1, len(SKY.bands), SKY.pixels, SKY.pixels), np.float16)
    for band, value in noise_units.items():
        made[0, SKY.bands.index(band), 2:6, 2:6] = value
    return made


def test_i_g_and_r_are_red_blue_and_green() -> None:
    for number, band in enumerate("irg"):
        image = colour.compose_colours(stamp(**{band: 20.0}), SKY)[0]
        assert image.dtype == np.uint8
        assert image[4, 4].argmax() == number


def test_a_source_of_one_flux_density_in_all_bands_is_grey() -> None:
    noise = dict(zip(colour.BANDS, colour._compute_noise_flux(SKY), strict=True))
    pixel = colour.compose_colours(stamp(**{b: 20 * noise["r"] / noise[b] for b in "gri"}), SKY)[
        0, 4, 4
    ]
    assert int(pixel.max()) - int(pixel.min()) <= 2


def test_bright_cores_keep_their_colour_and_faint_light_is_seen() -> None:
    faint, bright = (
        colour.compose_colours(stamp(i=3 * level, r=2 * level, g=level), SKY)[0].astype(int)
        for level in (1.0, 1000.0)
    )
    assert faint[4, 4].sum() > faint[0, 0].sum() + 30
    assert bright[4, 4].max() > 240
    assert bright[4, 4, 0] > bright[4, 4, 2] + 40


def test_a_missing_band_is_told() -> None:
    with pytest.raises(ValueError, match="not found"):
        colour.compose_colours(stamp(), SkyParameters(samples=1, bands="ri"))
