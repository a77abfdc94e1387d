"""Drawn images against GalSim's own, over everything that a galaxy can be, and their speed."""

import math
import time
from statistics import median

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cepheid.reference.data import galaxies
from cepheid.reference.data.galaxies import SkyParameters, drawing, population
from cepheid.reference.data.galaxies.drawing import Optics, Profile
from cepheid.reference.data.sky import colour
from cepheid.reference.data.store import StoreError
from tests import assert_raises

LSST = Optics(pixels=64, pixel_scale_arcsec=0.2, psf_fwhm_arcsec=0.65)
TOLERANCE = 5e-5  # of the peak, as the module promises

shapes = st.builds(
    lambda size, angle: (size * math.cos(angle), size * math.sin(angle)),
    st.floats(0, population.LARGEST_SHAPE),
    st.floats(-math.pi, math.pi),
)
offsets = st.tuples(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5))
# Of the parametric prior: the smallest and largest discs and bulges that draw_from_prior makes.
prior_profiles = st.one_of(
    st.builds(Profile, st.just(1.0), st.floats(0.08, 2.0)),
    st.builds(Profile, st.just(4.0), st.floats(0.04, 1.4)),
)
indices = [round(0.3 + 0.05 * step, 2) for step in range(115)]
catalogue_profiles = st.builds(Profile, st.sampled_from(indices), st.floats(0.08, 1.6))


def difference(
    optics: Optics, profile: Profile, shape: tuple[float, float], offset: tuple[float, float]
) -> float:
    """Largest difference from GalSim's image, in units of its peak."""
    ours = drawing.draw_profiles(optics, [profile], shape, offset)[0]
    theirs = drawing.draw_with_galsim(optics, [profile], np.ones((1, 1)), shape, offset)[0]
    return float(np.abs(ours - theirs).max() / theirs.max())


@settings(max_examples=25)
@given(profile=prior_profiles, shape=shapes, offset=offsets)
@example(Profile(4.0, 0.264), (population.LARGEST_SHAPE, 0.0), (0.0, 0.0))  # the worst one known
def test_profiles_of_the_prior_are_galsims(
    profile: Profile, shape: tuple[float, float], offset: tuple[float, float]
) -> None:
    assert difference(LSST, profile, shape, offset) < TOLERANCE


def test_a_trail_is_the_sum_of_its_places() -> None:
    places, weights = np.array([[-3.3, 10.0], [4.1, 0.2], [20.0, -25.5]]), np.array([0.5, 1.0, 2.0])
    profile, shape = Profile(4.0, 0.4), (0.2, -0.3)
    trail = drawing.draw_trail(LSST, profile, shape, places, weights)
    summed = sum(
        weight * drawing.draw_profiles(LSST, [profile], shape, (place[0], place[1]))[0]
        for place, weight in zip(places, weights, strict=True)
    )
    np.testing.assert_allclose(trail, summed, atol=1e-15)


@settings(max_examples=15)  # GalSim makes a table for each index, which takes it a while
@given(profile=catalogue_profiles, shape=shapes, offset=offsets)
def test_profiles_of_a_catalogue_are_galsims(
    profile: Profile, shape: tuple[float, float], offset: tuple[float, float]
) -> None:
    # 8.2e-5 was found at a Sersic index of 0.35, where profiles end most sharply.
    assert difference(LSST, profile, shape, offset) < 2 * TOLERANCE


@pytest.mark.parametrize("radius", [0.04, 0.3, 2.0])
@pytest.mark.parametrize("index", [1.0, 4.0])
@pytest.mark.parametrize("size", [0.0, 0.75])
def test_corners_of_the_prior_are_galsims(index: float, radius: float, size: float) -> None:
    assert difference(LSST, Profile(index, radius), (0.6 * size, -0.8 * size), (0.5, -0.5)) < (
        TOLERANCE if index == 1.0 or radius <= 1.4 else 4 * TOLERANCE
    )


@pytest.mark.parametrize(
    ("psf_fwhm_arcsec", "psf_shear"), [(0.65, (0.02, 0.0)), (0.5, (0.0, -0.02)), (1.0, (0.1, 0.1))]
)
def test_the_psf_may_be_sheared(psf_fwhm_arcsec: float, psf_shear: tuple[float, float]) -> None:
    optics = Optics(64, 0.2, psf_fwhm_arcsec, psf_shear)
    assert difference(optics, Profile(1.0, 0.3), (0.3, 0.2), (0.2, 0.1)) < TOLERANCE
    round_psf = Optics(64, 0.2, psf_fwhm_arcsec)
    moved = drawing.draw_profiles(optics, [Profile(1.0, 0.3)], (0.3, 0.2))
    unmoved = drawing.draw_profiles(round_psf, [Profile(1.0, 0.3)], (0.3, 0.2))
    assert np.abs(moved - unmoved).max() > 100 * TOLERANCE * unmoved.max()


def test_a_profile_does_not_depend_on_which_others_are_drawn_with_it() -> None:
    """Within the tolerance: the largest profile decides on the period for all."""
    small, large = Profile(1.0, 0.3), Profile(4.0, 1.3)
    alone = drawing.draw_profiles(LSST, [small], (0.3, 0.2))[0]
    together = drawing.draw_profiles(LSST, [small, large], (0.3, 0.2))[0]
    assert np.abs(alone - together).max() < TOLERANCE * alone.max()


@pytest.mark.parametrize("pixels", [32, 48, 63, 65])
def test_other_stamps(pixels: int) -> None:
    optics = Optics(pixels, 0.2, 0.65)
    for radius in (0.3, 1.0):
        assert difference(optics, Profile(1.0, radius), (0.3, 0.2), (0.2, 0.1)) < TOLERANCE


def test_a_psf_that_the_pixels_undersample_is_refused() -> None:
    optics = Optics(pixels=64, pixel_scale_arcsec=0.2, psf_fwhm_arcsec=0.35)
    given, refused = (optics, [Profile(1.0, 0.3)], (0.0, 0.0)), "undersampled; expected a PSF at"
    assert_raises(StoreError, refused, drawing.draw_profiles, *given)


def test_at_least_three_times_as_fast_as_one_drawing_per_band() -> None:
    """Measured 13 times; in processor time, alternating, so that a busy machine does not matter."""
    sky = SkyParameters(samples=1000)
    shown = [galaxies.draw_galaxy(sky, index) for index in range(24)]
    straightforward, ours = [], []
    for galaxy in [shown[0], *shown]:  # the first one warms up
        galaxies.compute_electrons(sky, galaxy)  # tables of another period
        started = time.process_time()
        theirs = galaxies.draw_with_galsim(sky, galaxy)
        between = time.process_time()
        image = galaxies.compute_electrons(sky, galaxy)
        ours.append(time.process_time() - between)
        straightforward.append(between - started)
        assert np.abs(image - theirs).max() < TOLERANCE * theirs.max()
    assert median(straightforward[1:]) > 3 * median(ours[1:])


# Colours ------------------------------------------------------------------------------------------

SMALL_SKY = SkyParameters(samples=1, pixels=8)


def stamp(**noise_units: float) -> np.ndarray:
    made = np.zeros((1, len(SMALL_SKY.bands), SMALL_SKY.pixels, SMALL_SKY.pixels), np.float16)
    for band, value in noise_units.items():
        made[0, SMALL_SKY.bands.index(band), 2:6, 2:6] = value
    return made


def test_colours_are_those_of_bands_and_cores_keep_theirs() -> None:
    for number, band in enumerate("irg"):
        image = colour.compose_colours(stamp(**{band: 20.0}), SMALL_SKY)[0]
        assert image.dtype == np.uint8
        assert image[4, 4].argmax() == number
    noise = dict(zip(colour.BANDS, colour._compute_noise_flux(SMALL_SKY), strict=True))
    pixel = colour.compose_colours(
        stamp(**{b: 20 * noise["r"] / noise[b] for b in "gri"}), SMALL_SKY
    )[0, 4, 4]
    assert int(pixel.max()) - int(pixel.min()) <= 2
    faint, bright = (
        colour.compose_colours(stamp(i=3 * level, r=2 * level, g=level), SMALL_SKY)[0].astype(int)
        for level in (1.0, 1000.0)
    )
    assert faint[4, 4].sum() > faint[0, 0].sum() + 30
    assert bright[4, 4].max() > 240
    assert bright[4, 4, 0] > bright[4, 4, 2] + 40
    two = SkyParameters(samples=1, bands="ri")
    assert_raises(ValueError, "not found", colour.compose_colours, stamp(), two)
