"""Drawn galaxies against GalSim, their labels, and datasets of them."""

import math
from dataclasses import replace
from pathlib import Path

import galsim
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cepheid.reference.data import galaxies, preparation
from cepheid.reference.data.columns import Fixed
from cepheid.reference.data.galaxies import SkyParameters, drawing
from cepheid.reference.data.galaxies.drawing import Profile
from cepheid.reference.data.galaxies.population import (
    RADIUS_RANGE_ARCSEC,
    Component,
    Galaxy,
    compute_half_light_radius,
)
from cepheid.reference.data.preparation import Contents
from cepheid.reference.data.store import StoreError
from tests import assert_raises

SKY = SkyParameters(samples=300)


def galaxy(e1: float = 0.3, e2: float = 0.2, dx: float = 0.0, dy: float = 0.0) -> Galaxy:
    """A bright one of bulge and disc."""
    components = (Component(1.0, "Scd", 0.6, 0.6), Component(4.0, "E", 0.4, 0.36))
    radius = compute_half_light_radius(0.4, 0.36, 0.6)
    return Galaxy(21.5, 0.6, components, 0.4, radius, e1, e2, dx, dy)


def profile(component: Component, shown: Galaxy) -> galsim.GSObject:
    drawn = Profile(component.sersic_index, component.half_light_radius_arcsec)
    return drawing.make_sersic(drawn, (shown.e1, shown.e2))


def signal(shown: Galaxy) -> np.ndarray:
    return galaxies.compute_electrons(SKY, shown)


@pytest.fixture(scope="module")
def drawn() -> dict[str, np.ndarray]:
    return galaxies.draw(SKY, range(120))


def test_a_galaxy_and_its_noise_are_functions_of_seed_and_number(
    drawn: dict[str, np.ndarray],
) -> None:
    for name, values in galaxies.draw(SKY, range(7, 9)).items():
        np.testing.assert_array_equal(values, drawn[name][7:9])
    other = galaxies.draw(replace(SKY, seed=SKY.seed + 1), range(3))
    assert not np.intersect1d(other["labels"]["e1"], drawn["labels"]["e1"]).size
    noise = (drawn["stamps"].astype(float) - drawn["noise_free"])[:2, 2]
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.1


def test_observation_is_the_published_one() -> None:
    noted = SKY.as_json
    assert noted["exposure_seconds"] == [15 * n for n in (56, 80, 184, 184, 160, 160)]
    assert noted["sky_electrons"] == [884, 12746, 65329, 93565, 126597, 145354]
    assert noted["collecting_area_cm2"] == pytest.approx(math.pi * 334**2)
    of_two_bands = replace(SKY, bands="ri", exposure_seconds=(), sky_electrons=())
    assert of_two_bands.sky_electrons == (65329, 93565)


# Neighbours ---------------------------------------------------------------------------------------


def test_neighbours_add_their_light_and_change_no_label(drawn: dict[str, np.ndarray]) -> None:
    sky = replace(SKY, neighbours=2)
    blended = galaxies.draw(sky, range(8))
    np.testing.assert_array_equal(blended["labels"], drawn["labels"][:8])
    light = blended["noise_free"].astype(float) - drawn["noise_free"][:8]
    assert light.min() > -0.01 * light.max()
    first = sum(signal(each) for each in galaxies.draw_galaxy(sky, 0).neighbours)
    noise = np.sqrt(np.array(sky.sky_electrons))[:, None, None]
    np.testing.assert_allclose(light[0], first / noise, atol=2e-3 * light[0].max())


def test_neighbours_lie_around_the_galaxy() -> None:
    sky, (near, far) = replace(SKY, neighbours=3), galaxies.NEIGHBOUR_PIXELS
    shown = [each for at in range(200) for each in galaxies.draw_galaxy(sky, at).neighbours]
    places = np.array([(each.dx_pixels, each.dy_pixels) for each in shown])
    radii = np.hypot(*places.T)
    assert near <= radii.min() < near + 1
    assert far - 1 < radii.max() <= far
    assert np.mean(radii**2) == pytest.approx((near**2 + far**2) / 2, rel=0.1)  # uniform in area
    assert np.abs(places.mean(0)).max() < 2
    assert sky.as_json == {**SKY.as_json, "neighbours": 3, "neighbour_pixels": [near, far]}
    assert_raises(StoreError, "neighbours -1, expected 0 or more", replace, SKY, neighbours=-1)


# Drawing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dx", [0.0, 0.4])
def test_bands_are_what_galsim_draws_band_by_band(dx: float) -> None:
    """Within 1e-5 of the peak: the sum of both components, drawn at once with their fluxes."""
    shown = galaxy(dx=dx, dy=-dx / 2)
    electrons = [
        galaxies.compute_component_electrons(SKY, shown, part) for part in shown.components
    ]
    for band, image in enumerate(signal(shown)):
        parts = [
            flux[band] * profile(part, shown)
            for flux, part in zip(electrons, shown.components, strict=True)
        ]
        observed = galsim.Convolve(galsim.Add(parts), galsim.Kolmogorov(fwhm=0.65))
        direct = observed.drawImage(nx=64, ny=64, scale=0.2, offset=(dx, -dx / 2), dtype=float)
        assert np.abs(image - direct.array).max() < 1e-5 * direct.array.max()


def test_stamps_are_what_galsim_draws_chromatically() -> None:
    """Within 0.2% of the peak, with none of our tables: SEDs, redshift, bandpasses, area, time."""
    shown = galaxy()
    f814w = galsim.Bandpass("ACS_wfc_F814W.dat", wave_type="nm").withZeropoint("AB")
    parts = []
    for part in shown.components:
        sed = galsim.SED(f"CWW_{part.template}_ext_more.sed", "Ang", "flambda")
        magnitude = shown.magnitude - 2.5 * math.log10(part.fraction)
        sed = sed.atRedshift(shown.redshift).withMagnitude(magnitude, f814w)
        parts.append(profile(part, shown) * sed)
    observed = galsim.Convolve(galsim.Add(parts), galsim.Kolmogorov(fwhm=0.65))
    for band, name in enumerate("ugrizy"):
        bandpass = galsim.Bandpass(f"LSST_{name}.dat", wave_type="nm")
        direct = observed.drawImage(bandpass, nx=64, ny=64, scale=0.2, dtype=float).array
        direct *= math.pi * 334**2 * 15 * [56, 80, 184, 184, 160, 160][band]
        assert np.abs(signal(shown)[band] - direct).max() < 2e-3 * direct.max()


@pytest.mark.parametrize("template", ["E", "Sbc", "Scd"])
@pytest.mark.parametrize("redshift", [0.021, 0.333, 1.2345, 3.9])
def test_fluxes_are_galsims(template: str, redshift: float) -> None:
    """Within 0.5%, and 1e-4 of the brightest band where hardly anything is left."""
    f814w = galsim.Bandpass("ACS_wfc_F814W.dat", wave_type="nm").withZeropoint("AB")
    sed = galsim.SED(f"CWW_{template}_ext_more.sed", "Ang", "flambda")
    sed = sed.atRedshift(redshift).withMagnitude(22.0, f814w)
    bandpasses = [galsim.Bandpass(f"LSST_{band}.dat", wave_type="nm") for band in "ugrizy"]
    per_cm2_and_second = [sed.calculateFlux(bandpass) for bandpass in bandpasses]
    expected = np.multiply(per_cm2_and_second, SKY.exposure_seconds) * math.pi * 334**2
    shown = replace(galaxy(), magnitude=22.0, redshift=redshift)
    electrons = galaxies.compute_component_electrons(SKY, shown, Component(1.0, template, 1.0, 0.5))
    np.testing.assert_allclose(electrons, expected, rtol=5e-3, atol=1e-4 * expected.max())


# Shape --------------------------------------------------------------------------------------------

SHAPES = [(0.4, 0.2), (0.2, 0.4), (-0.3, 0.5), (0.2, -0.6)]


@pytest.mark.parametrize(("e1", "e2"), SHAPES)
def test_flips_change_the_sign_of_e2_and_transposition_that_of_e1(e1: float, e2: float) -> None:
    """Within 1e-6 of the peak."""
    image = signal(galaxy(e1, e2))
    for moved, expected in (
        (image[:, :, ::-1], galaxy(e1, -e2)),
        (image[:, ::-1, :], galaxy(e1, -e2)),
        (image.transpose(0, 2, 1), galaxy(-e1, e2)),
    ):
        assert np.abs(moved - signal(expected)).max() < 1e-6 * image.max()
        assert np.abs(moved - image).max() > 1e-2 * image.max()


shape = st.builds(
    lambda size, angle: size * complex(math.cos(angle), math.sin(angle)),
    st.floats(0, 0.75),
    st.floats(-math.pi, math.pi),
)


@settings(deadline=None)
@given(e=shape, gamma=shape.map(lambda g: g * 0.4), kx=st.floats(-2, 2), ky=st.floats(-2, 2))
def test_lensing_acts_as_documented(e: complex, gamma: complex, kx: float, ky: float) -> None:
    """A drawn galaxy that is sheared is the galaxy drawn with (e + γ)/(1 + γ*·e)."""
    component = Component(1.0, "Scd", 1.0, 0.5)
    lensed = profile(component, galaxy(e.real, e.imag)).shear(g1=gamma.real, g2=gamma.imag)
    expected = (e + gamma) / (1 + gamma.conjugate() * e)
    direct = profile(component, galaxy(expected.real, expected.imag))
    assert abs(lensed.kValue(kx, ky) - direct.kValue(kx, ky)) < 1e-6


def test_moments_follow_the_labels(drawn: dict[str, np.ndarray]) -> None:
    """KSB's estimate of reduced shear on noise-free stamps has the sign and slope of the labels."""
    psf = galsim.Kolmogorov(fwhm=0.65).drawImage(nx=64, ny=64, scale=0.2)
    measured, true = [], []
    for stamp, label in zip(drawn["noise_free"], drawn["labels"], strict=True):
        image = galsim.Image(stamp[2].astype(float), scale=0.2)
        found = galsim.hsm.EstimateShear(image, psf, shear_est="KSB", strict=False)
        if not found.error_message and math.hypot(label["e1"], label["e2"]) < 0.6:
            measured.append([found.corrected_g1, found.corrected_g2])
            true.append([label["e1"], label["e2"]])
    assert len(true) > 80
    for x, y in zip(np.transpose(true), np.transpose(measured), strict=True):
        assert np.polyfit(x, y, 1)[0] == pytest.approx(1.1, abs=0.1)
        assert np.corrcoef(x, y)[0, 1] > 0.97


# Noise and storage --------------------------------------------------------------------------------


def test_noise_is_that_of_signal_and_sky(drawn: dict[str, np.ndarray]) -> None:
    sky = np.array(SKY.sky_electrons)[:, None, None]
    truth = drawn["noise_free"].astype(float)
    deviation = (drawn["stamps"] - truth) / np.sqrt(1 + truth / np.sqrt(sky))
    np.testing.assert_allclose(deviation.mean(axis=(0, 2, 3)), 0, atol=0.01)
    np.testing.assert_allclose(deviation.var(axis=(0, 2, 3)), 1, atol=0.01)
    bright = truth > 20
    assert bright.sum() > 500
    assert deviation[bright].var() == pytest.approx(1, abs=0.2)


def test_rounding_is_below_an_eighth_of_the_noise_even_of_the_brightest_pixel() -> None:
    """Root mean square of float16's rounding, which is step/√12, over the pixel's own noise."""
    for template in galaxies.TEMPLATES:
        parts = (Component(4.0, template, 1.0, RADIUS_RANGE_ARCSEC[0]),)
        for redshift in (0.05, 0.5, 2.0):
            brightest = replace(galaxy(), magnitude=20.0, redshift=redshift, components=parts)
            sky = np.array(SKY.sky_electrons)
            electrons = signal(brightest).max(axis=(1, 2))
            step = np.spacing((electrons / np.sqrt(sky)).astype(np.float16)).astype(float)
            assert (step / math.sqrt(12) < 0.125 * np.sqrt(1 + electrons / sky)).all()


def test_galaxy_that_float16_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bright = replace(galaxy(), magnitude=12.0)
    monkeypatch.setattr(galaxies, "draw_galaxy", lambda parameters, index: bright)
    assert_raises(StoreError, "more than float16 holds", galaxies.draw, SKY, range(1))


def test_labels_are_the_galaxy_and_its_signal_to_noise_of_a_matched_filter(
    drawn: dict[str, np.ndarray],
) -> None:
    one = galaxies.draw_galaxy(SKY, 5)
    label = drawn["labels"][5]
    names = "e1 e2 redshift magnitude bulge_fraction half_light_radius_arcsec dx_pixels dy_pixels"
    for name in names.split():
        assert label[name.removesuffix("_pixels")] == np.float32(getattr(one, name))
    sky = SKY.sky_electrons[2]
    electrons = drawn["noise_free"][:, 2].astype(float) * math.sqrt(sky)
    expected = np.sqrt((electrons**2 / (electrons + sky)).sum(axis=(1, 2)))
    np.testing.assert_allclose(drawn["labels"]["snr"], expected, rtol=2e-3)
    faint = drawn["labels"]["magnitude"] > 24.8
    assert 6 < np.median(expected[faint]) < 15


# Datasets -----------------------------------------------------------------------------------------


def test_a_dataset_has_what_was_drawn_and_another_one_is_refused(tmp_path: Path) -> None:
    sky = SkyParameters(samples=260, pixels=32, bands="gri")
    galaxies.prepare(tmp_path / "2", sky, processes=2)
    dataset = galaxies.load(tmp_path / "2")
    assert dataset.stamps.shape == dataset.noise_free.shape == (260, 3, 32, 32)
    assert dataset.labels.dtype.names == galaxies.LABELS
    expected = galaxies.draw(sky, range(255, 258))
    np.testing.assert_array_equal(dataset.stamps[255:258], expected["stamps"])
    np.testing.assert_array_equal(dataset.labels[255:258], expected["labels"])
    assert dataset.manifest.parameters == sky.as_json
    assert "galsim" in dataset.manifest.versions
    columns = {"numbers": Fixed(np.dtype(np.int64))}
    contents = Contents(columns, lambda rows: {"numbers": np.array(rows)})
    preparation.prepare(tmp_path / "n", "numbers", {}, 2, contents, 1)
    other = "generator 'numbers', expected 'galaxies'"
    assert_raises(StoreError, other, galaxies.load, tmp_path / "n")
    data = {"generator": "galaxies", "train_samples": 200, "evaluation_samples": 100}
    assert galaxies.parameters_of(data) == SKY
