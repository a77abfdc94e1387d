"""Simulated LSST stamps of galaxies, and the truth about each.

The problem is that of Arcelin, "Comparison of Graphcore IPUs and Nvidia GPUs for cosmology
applications" (2021), section 3.1, and of Arcelin et al. 2021, MNRAS 500, 531, section 2.1: six
bands, 64 × 64 pixels of 0.2″, one Kolmogorov PSF, ten years of LSST exposure, Poisson noise.

One sky, many rows
    Galaxy ``i`` is a function of (seed, i) only, and row ``i`` of a dataset is galaxy ``i``. A run
    trains on rows [0, train) and validates on rows [train, train + evaluation) of one folder.
    Everything is computed in double precision and rounded once, when it is stored.

Stored arrays
    ``stamps``      float16 (rows, bands, y, x): noisy image, sky mean subtracted
    ``noise_free``  float16, the same shape: what the noisy image is a Poisson draw of
    ``labels``      structured float32 (rows,), fields LABELS

    Pixels are in units of the band's sky noise: value × sqrt(sky electrons per pixel) = electrons.
    float16 rounds them by at most 1/2048 of the value: a tenth of the noise in the brightest pixel.

Neighbours
    A galaxy has a number of them where the definition asks for it. They are galaxies of the same
    population, at NEIGHBOUR_PIXELS from the centre of the stamp, uniform in area, in any direction.
    Their light is in the images; no label tells of them.

Shape
    e = e1 + i·e2 is the reduced shear g = (1 − q)/(1 + q)·exp(2iβ) of an ellipse with axis ratio q
    (minor to major). β is the angle of its major axis from +x towards +y; x is the last axis of an
    array (columns), y the one before it (rows), both increasing with the index: GalSim's frame, in
    which ``image.array[y, x]`` is shown with row 0 at the bottom. So e1 > 0 is long along x, and
    e2 > 0 is long along the diagonal on which row and column increase together. Bulge and disc of a
    galaxy share one e. Lensing by a reduced shear γ makes it (e + γ)/(1 + γ*·e). Flipping x or
    flipping y changes the sign of e2; transposing changes the sign of e1.

Labels
    e1, e2                    as above
    redshift, magnitude       magnitude is AB in the HST band F814W, of the whole galaxy
    bulge_fraction            share of the F814W light in the bulge; for a catalogue galaxy that is
                              fitted by one Sérsic profile 1 where that is drawn as an elliptical
                              (n ≥ 3), else 0
    half_light_radius_arcsec  of the whole galaxy before the PSF, in F814W, circularised: geometric
                              mean of the semi-axes of the ellipse that holds half the light
    snr                       of the best linear measure of r-band flux when the image is known:
                              sqrt(sum of signal²/(signal + sky)) over the r-band stamp
    dx, dy                    centroid minus the centre of the stamp, in pixels

Which galaxies there are is said in ``population``; how they become images, in ``drawing``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Self

import galsim
import numpy as np

from cepheid.reference.data import dataset
from cepheid.reference.data.columns import Fixed
from cepheid.reference.data.dataset import Opened, Work
from cepheid.reference.data.galaxies import drawing, population
from cepheid.reference.data.galaxies.drawing import Optics, Profile
from cepheid.reference.data.galaxies.population import (
    MAGNITUDE_RANGE,
    REDSHIFT_RANGE,
    Component,
    Galaxy,
)
from cepheid.reference.data.preparation import Contents
from cepheid.reference.data.store import Manifest, StoreError

LABELS = (
    "e1", "e2", "redshift", "magnitude", "bulge_fraction", "half_light_radius_arcsec", "snr",
    "dx", "dy",
)  # fmt: skip
LABEL_DTYPE = np.dtype([(name, np.float32) for name in LABELS])
PIXEL_DTYPE = np.dtype(np.float16)

# The observation, as in the published data: one exposure of 15 s for each visit in ten years (56,
# 80, 184, 184, 160, 160: Ivezić et al. 2019, ApJ 873, 111, table 1), and the mean sky electrons per
# pixel over all of them.
LSST_SECONDS = {"u": 840, "g": 1200, "r": 2760, "i": 2760, "z": 2400, "y": 2400}
LSST_SKY = {"u": 884, "g": 12746, "r": 65329, "i": 93565, "z": 126597, "y": 145354}

# Templates of Coleman, Wu & Weedman 1980, ApJS 43, 393, as GalSim ships them.
TEMPLATES = {name: f"CWW_{name}_ext_more.sed" for name in ("E", "Sbc", "Scd")}
REDSHIFT_STEP = 0.005
WAVELENGTH_STEP_NM = 0.25

NEIGHBOUR_PIXELS = (6.0, 16.0)  # 1.2″ to 3.2″: the light overlaps, the centres do not

_GALAXY_STREAM, _NOISE_STREAM, _NEIGHBOUR_STREAM = 0, 1, 2


@dataclass(frozen=True)
class SkyParameters(dataset.Parameters):
    """The parameters of everything that the images depend on.

    ``exposure_seconds`` and ``sky_electrons`` (mean per pixel) have a value for each band; empty
    stands for LSST's ten years. ``catalogue`` is a COSMOS catalogue file with its ``_fits`` and
    ``_selection`` files beside it; None stands for the parametric prior. Each galaxy has so many
    ``neighbours``. Raises StoreError for values that make no sense.
    """

    generator = "galaxies"
    version = 2
    recorded = (
        "samples", "seed", "bands", "pixels", "pixel_scale_arcsec", "psf_fwhm_arcsec",
        "largest_offset_pixels", "exposure_seconds", "sky_electrons", "collecting_area_cm2",
    )  # fmt: skip

    samples: int
    seed: int = 20260101
    bands: str = "ugrizy"
    pixels: int = 64
    pixel_scale_arcsec: float = 0.2
    psf_fwhm_arcsec: float = 0.65
    largest_offset_pixels: float = 0.5
    exposure_seconds: tuple[float, ...] = ()
    sky_electrons: tuple[float, ...] = ()
    collecting_area_cm2: float = math.pi * 334**2
    catalogue: Path | None = None
    neighbours: int = 0

    def __post_init__(self) -> None:
        unknown = set(self.bands) - set(LSST_SKY)
        if unknown or len(set(self.bands)) < len(self.bands) or "r" not in self.bands:
            raise StoreError(
                f'bands are "{self.bands}", expected letters of "{"".join(LSST_SKY)}", each '
                f"once, and r among them"
            )
        if self.samples < 1 or self.pixels < 1 or self.neighbours < 0:
            raise StoreError(
                f"samples is {self.samples} and pixels {self.pixels}, expected 1 or more, and "
                f"neighbours {self.neighbours}, expected 0 or more"
            )
        for name, usual in (("exposure_seconds", LSST_SECONDS), ("sky_electrons", LSST_SKY)):
            values = tuple(getattr(self, name)) or tuple(usual[band] for band in self.bands)
            if len(values) != len(self.bands) or min(values) <= 0:
                raise StoreError(
                    f"{name} is {list(values)}, expected one positive number for each "
                    f'letter of "{self.bands}"'
                )
            object.__setattr__(self, name, values)

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Parse the ``data`` section of a definition, whose splits are one number of samples here.

        A setting that is missing keeps its default. Raises StoreError for values that make no
        sense.
        """
        asked = dict(data)
        asked["samples"] = asked.pop("train_samples") + asked.pop("evaluation_samples")
        catalogue = asked.pop("catalogue", "parametric")
        asked = dataset.select_settings(cls.generator, cls, asked)
        path = None if catalogue == "parametric" else population.find_catalogue(catalogue)
        return cls(**asked, catalogue=path)

    @property
    def rows(self) -> int:
        """Return the number of samples of both splits."""
        return self.samples

    @cached_property
    def prior(self) -> dict[str, object]:
        """The population for the manifest.

        Catalogue files are named by name and SHA-256, so that machines with different folders
        agree. Raises StoreError if a file cannot be read.
        """
        return population.describe_prior(self.catalogue)

    def describe(self) -> dict[str, Any]:
        """Return which galaxies there are."""
        more = {"neighbours": self.neighbours, "neighbour_pixels": NEIGHBOUR_PIXELS}
        return {"population": self.prior, **(more if self.neighbours else {})}


@dataclass(frozen=True)
class Galaxies:
    """A prepared dataset: memory maps as the module's docstring says, and its manifest."""

    stamps: np.memmap
    noise_free: np.memmap
    labels: np.memmap
    manifest: Manifest


# Drawing ------------------------------------------------------------------------------------------


def draw(parameters: SkyParameters, indices: range) -> dict[str, np.ndarray]:
    """Draw galaxies ``indices`` of the sky: the stored arrays, one row each.

    ``stamps`` and ``noise_free`` are (rows, bands, pixels, pixels), ``labels`` (rows,).
    """
    shape = (len(indices), len(parameters.bands), parameters.pixels, parameters.pixels)
    stamps, noise_free = np.empty(shape, PIXEL_DTYPE), np.empty(shape, PIXEL_DTYPE)
    labels = np.empty(len(indices), LABEL_DTYPE)
    sky = np.array(parameters.sky_electrons)[:, None, None]
    for row, index in enumerate(indices):
        galaxy = draw_galaxy(parameters, index)
        own = compute_electrons(parameters, replace(galaxy, neighbours=()))
        signal = own + sum(compute_electrons(parameters, each) for each in galaxy.neighbours)
        photons = _make_generator(parameters, index, _NOISE_STREAM).poisson(
            np.maximum(signal + sky, 0)
        )
        stamps[row] = _scale_to_sky_noise(photons - sky, sky)
        noise_free[row] = _scale_to_sky_noise(signal, sky)
        labels[row] = _make_labels(parameters, galaxy, own)
    return {"stamps": stamps, "noise_free": noise_free, "labels": labels}


def draw_galaxy(parameters: SkyParameters, index: int) -> Galaxy:
    """Draw galaxy number ``index`` of the sky with its neighbours, before it is observed."""
    galaxy = _draw_one(parameters, _make_generator(parameters, index, _GALAXY_STREAM))
    random = _make_generator(parameters, index, _NEIGHBOUR_STREAM)
    neighbours = (_draw_neighbour(parameters, random) for _ in range(parameters.neighbours))
    return replace(galaxy, neighbours=tuple(neighbours))


def _draw_neighbour(parameters: SkyParameters, random: np.random.Generator) -> Galaxy:
    near, far = NEIGHBOUR_PIXELS
    radius, angle = math.sqrt(random.uniform(near**2, far**2)), random.uniform(0, 2 * math.pi)
    x, y = radius * math.cos(angle), radius * math.sin(angle)
    return replace(_draw_one(parameters, random), dx_pixels=x, dy_pixels=y)


def _draw_one(parameters: SkyParameters, random: np.random.Generator) -> Galaxy:
    if parameters.catalogue is None:
        return population.draw_from_prior(random, parameters.largest_offset_pixels)
    return population.draw_from_catalogue(
        parameters.catalogue, random, parameters.largest_offset_pixels
    )


def compute_electrons(
    parameters: SkyParameters, galaxy: Galaxy, psf_shear: tuple[float, float] = (0.0, 0.0)
) -> np.ndarray:
    """Return the expected electrons per pixel without the sky, float64 (bands, y, x).

    All bands share PSF and shape, so each component is drawn once, at unit flux, and the bands are
    its multiples. ``psf_shear`` is the reduced shear of the PSF, which the datasets leave round.
    The light of the neighbours is added.
    """
    optics, profiles, electrons = _split_into_profiles(parameters, galaxy, psf_shear)
    unit_images = drawing.draw_profiles(
        optics, profiles, (galaxy.e1, galaxy.e2), (galaxy.dx_pixels, galaxy.dy_pixels)
    )
    own: np.ndarray = np.tensordot(electrons, unit_images, axes=1)
    return own + sum(compute_electrons(parameters, each, psf_shear) for each in galaxy.neighbours)


def draw_with_galsim(parameters: SkyParameters, galaxy: Galaxy) -> np.ndarray:
    """Draw with GalSim what ``compute_electrons`` computes, float64 (bands, y, x).

    It calls ``drawImage`` once per band; tests and timings compare with it.
    """
    optics, profiles, electrons = _split_into_profiles(parameters, galaxy)
    return drawing.draw_with_galsim(
        optics, profiles, electrons, (galaxy.e1, galaxy.e2), (galaxy.dx_pixels, galaxy.dy_pixels)
    )


def _split_into_profiles(
    parameters: SkyParameters, galaxy: Galaxy, psf_shear: tuple[float, float] = (0.0, 0.0)
) -> tuple[Optics, list[Profile], np.ndarray]:
    """Return optics, profiles and the electrons of each profile per band, (bands, profiles)."""
    optics = Optics(
        parameters.pixels, parameters.pixel_scale_arcsec, parameters.psf_fwhm_arcsec, psf_shear
    )
    profiles = [
        Profile(component.sersic_index, component.half_light_radius_arcsec)
        for component in galaxy.components
    ]
    electrons = [
        compute_component_electrons(parameters, galaxy, part) for part in galaxy.components
    ]
    return optics, profiles, np.stack(electrons, axis=1)


def compute_component_electrons(
    parameters: SkyParameters, galaxy: Galaxy, component: Component
) -> np.ndarray:
    """Return the expected electrons of a component over the whole exposure, (bands,)."""
    redshifts, tables = _compute_rate_tables(parameters.bands)
    # Electrons per second and cm² of a galaxy of F814W = 0.
    rates = np.array(
        [np.interp(galaxy.redshift, redshifts, rate) for rate in tables[component.template]]
    )
    brightness = component.fraction * 10 ** (-0.4 * galaxy.magnitude)
    exposure = parameters.collecting_area_cm2 * np.array(parameters.exposure_seconds)
    return np.asarray(brightness * rates * exposure)


def _scale_to_sky_noise(electrons: np.ndarray, sky: np.ndarray) -> np.ndarray:
    values: np.ndarray = electrons / np.sqrt(sky)
    if np.abs(values).max() > np.finfo(PIXEL_DTYPE).max:
        raise StoreError(
            f"a galaxy is {np.abs(values).max():.0f} times as bright as the sky noise, more than "
            f"float16 holds; only galaxies fainter than F814W {MAGNITUDE_RANGE[0]} can be stored"
        )
    return values


def _make_labels(
    parameters: SkyParameters, galaxy: Galaxy, signal: np.ndarray
) -> tuple[float, ...]:
    """Return the labels of a galaxy, whose own electrons are ``signal``, in the order of LABELS."""
    r = parameters.bands.index("r")
    variance = signal[r] + parameters.sky_electrons[r]
    snr = math.sqrt(np.sum(signal[r] ** 2 / variance))
    return (
        galaxy.e1,
        galaxy.e2,
        galaxy.redshift,
        galaxy.magnitude,
        galaxy.bulge_fraction,
        galaxy.half_light_radius_arcsec,
        snr,
        galaxy.dx_pixels,
        galaxy.dy_pixels,
    )


def _make_generator(parameters: SkyParameters, index: int, stream: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence([parameters.seed, index, stream]))


# Colours ------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _compute_rate_tables(bands: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return redshifts, (redshifts,), and the rates of each template there, (bands, redshifts).

    Photon integrals of redshifted templates over LSST's bands, over that in F814W, in which the
    template is normalised to AB = 0. All at once in less time than GalSim needs for a hundred.
    """
    first, last = REDSHIFT_RANGE
    redshifts = np.linspace(first, last, round((last - first) / REDSHIFT_STEP) + 1)
    wavelengths_nm = np.arange(300.0, 1110.0, WAVELENGTH_STEP_NM)
    f814w = galsim.Bandpass("ACS_wfc_F814W.dat", wave_type="nm").withZeropoint("AB")
    lsst = [galsim.Bandpass(f"LSST_{band}.dat", wave_type="nm") for band in bands]
    throughputs = np.stack([bandpass(wavelengths_nm) for bandpass in (f814w, *lsst)])
    rates = {}
    for template, file in TEMPLATES.items():
        sed = galsim.SED(file, wave_type="Ang", flux_type="flambda")
        photons = sed(wavelengths_nm / (1 + redshifts[:, None]))  # per nm, up to a factor
        counts = throughputs @ photons.T
        rates[template] = counts[1:] / counts[0] * 10 ** (0.4 * f814w.zeropoint)
    return redshifts, rates


# The dataset --------------------------------------------------------------------------------------


def _plan(parameters: SkyParameters, work: Work) -> Contents:
    bands, pixels = len(parameters.bands), parameters.pixels
    image = Fixed(PIXEL_DTYPE, (bands, pixels, pixels))
    columns = {"stamps": image, "noise_free": image, "labels": Fixed(LABEL_DTYPE)}
    return Contents(columns, partial(draw, parameters), packages=("GalSim",))


def _open(opened: Opened) -> Galaxies:
    return Galaxies(**opened.arrays, manifest=opened.manifest)


DATASET = dataset.Dataset(SkyParameters, _plan, _open)
load, parameters_of, prepare = DATASET.load, DATASET.parse, DATASET.prepare
