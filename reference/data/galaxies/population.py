"""Which galaxies there are: magnitude, redshift, profile, shape and place within a pixel.

Without a catalogue, they follow the parametric prior below. With a COSMOS catalogue, its parametric
fits (Mandelbaum et al. 2014, ApJS 212, 5, appendix E.2): magnitude, redshift, size, axis ratio and
components of a fitted galaxy, and a random orientation.

e1, e2 and the other quantities are as the docstring of ``galaxies`` says.
"""

import hashlib
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import galsim
import numpy as np
from astropy.io import fits

from cepheid.reference.data.store import StoreError

# The population without a catalogue.
MAGNITUDE_RANGE = (20.0, 25.2)  # F814W; the faint end is that of the COSMOS sample
COUNT_SLOPE = 0.3  # log10 of galaxy counts per magnitude, usual for deep I-band surveys
# Redshift at given magnitude: LSST Science Book v2 (arXiv:0912.0201), equation 3.8, with i = F814W:
# p(z) ∝ (z/z0)² exp(−z/z0), z0 = 0.0417 i − 0.744.
REDSHIFT_SLOPE, REDSHIFT_OFFSET = 0.0417, -0.744
REDSHIFT_RANGE = (0.02, 4.0)
# Half-light radius, log-normal: over all magnitudes its quantiles are those of GalSim's own sample
# of 300 COSMOS galaxies, 0.19/0.26/0.47/0.74/1.06″ at 5/16/50/84/95%. That the logarithm falls by
# 0.2 per magnitude is a choice; in GalSim's example of 100 galaxies, all brighter than F814W 22.5,
# it falls by 0.3.
MEDIAN_RADIUS_ARCSEC, MEDIAN_RADIUS_MAGNITUDE = 0.435, 24.2
RADIUS_SLOPE_PER_MAGNITUDE = -0.2
RADIUS_LOG_SCATTER = 0.47
RADIUS_RANGE_ARCSEC = (0.08, 1.6)  # the largest lose 10% of their light outside the stamp
# |g| = 0.75 × Beta(1.15, 1.58): least squares fit to the same galaxies' 0.05/0.11/0.28/0.56/0.64.
SHAPE_BETA = (1.15, 1.58)
LARGEST_SHAPE = 0.75  # axis ratio 1:7
# Bulge fraction: two in five are pure discs, the others Beta(1, 1.25). A single Sérsic profile of
# the same concentration then has the same galaxies' n = 1.18/2.67/3.50 at 50/84/95%; their lower
# quantiles 0.42/0.66 are below any exponential disc's 1.
PURE_DISC_SHARE = 0.4
BULGE_FRACTION_BETA = (1.0, 1.25)
BULGE_TO_DISC_RADIUS = 0.6

COSMOS = "cosmos"
COSMOS_VARIABLE = "CEPHEID_COSMOS"  # of the environment: the catalogue's main file
COSMOS_SAMPLES = ("25.2", "23.5")  # the limits in F814W of the samples, the usual one first

# Sérsic indices of catalogue fits are rounded, as GalSim's own COSMOSCatalog does: GalSim keeps
# tables for each index, and drawing is ten times as fast. The limits are those of galsim.Sersic.
SERSIC_STEP, SERSIC_RANGE = 0.05, (0.3, 6.0)
LARGEST_NUMBER_OF_TRIES = 1000
NEEDED_COLUMNS = (
    "mag_auto",
    "zphot",
    "sersicfit",
    "bulgefit",
    "use_bulgefit",
    "hlr",
    "flux",
    "dmag",
)
# What astropy makes of a file that is cut short, of a damaged header, and of no table at all.
NO_TABLE = (
    OSError, IndexError, KeyError, AttributeError, ValueError, TypeError, UserWarning,
    fits.VerifyError,
)  # fmt: skip
ELLIPTICAL_FROM, INTERMEDIATE_FROM = 3.0, 1.5


@dataclass(frozen=True)
class Component:
    """A Sérsic profile with the colours of one template.

    ``fraction`` is its share of the galaxy's F814W light. The half-light radius is circularised.
    """

    sersic_index: float
    template: str
    fraction: float
    half_light_radius_arcsec: float


@dataclass(frozen=True)
class Galaxy:
    """One galaxy as it is on the sky, before telescope and noise. Fields as the labels.

    ``neighbours`` are galaxies whose light lies on that of this one; they have no labels.
    """

    magnitude: float
    redshift: float
    components: tuple[Component, ...]
    bulge_fraction: float
    half_light_radius_arcsec: float
    e1: float
    e2: float
    dx_pixels: float
    dy_pixels: float
    neighbours: tuple["Galaxy", ...] = ()


def describe_prior(catalogue: Path | None) -> dict[str, Any]:
    """Return the settings for the manifest; a change in any of them makes another dataset."""
    limits = {
        "magnitude_range": list(MAGNITUDE_RANGE),
        "redshift_range": list(REDSHIFT_RANGE),
        "radius_range_arcsec": list(RADIUS_RANGE_ARCSEC),
        "largest_shape": LARGEST_SHAPE,
    }
    if catalogue is not None:
        return {**limits, "catalogue": _digest_catalogue(catalogue), "sersic_step": SERSIC_STEP}
    return {
        **limits,
        "catalogue": "parametric",
        "count_slope": COUNT_SLOPE,
        "redshift_slope": REDSHIFT_SLOPE,
        "redshift_offset": REDSHIFT_OFFSET,
        "median_radius_arcsec": MEDIAN_RADIUS_ARCSEC,
        "median_radius_magnitude": MEDIAN_RADIUS_MAGNITUDE,
        "radius_slope_per_magnitude": RADIUS_SLOPE_PER_MAGNITUDE,
        "radius_log_scatter": RADIUS_LOG_SCATTER,
        "shape_beta": list(SHAPE_BETA),
        "pure_disc_share": PURE_DISC_SHARE,
        "bulge_fraction_beta": list(BULGE_FRACTION_BETA),
        "bulge_to_disc_radius": BULGE_TO_DISC_RADIUS,
    }


def _draw_placement(
    random: np.random.Generator, shape: float, largest_offset_pixels: float
) -> dict[str, Any]:
    """Draw an orientation and a place within a pixel, both uniformly."""
    angle = random.uniform(0, math.pi)
    limit = largest_offset_pixels
    return {
        "e1": shape * math.cos(2 * angle),
        "e2": shape * math.sin(2 * angle),
        "dx_pixels": random.uniform(-limit, limit),
        "dy_pixels": random.uniform(-limit, limit),
    }


# Parametric prior ---------------------------------------------------------------------------------


def draw_from_prior(random: np.random.Generator, largest_offset_pixels: float) -> Galaxy:
    """Draw a galaxy of the parametric prior, centred within the offset along x and y."""
    # Counts ∝ 10^(slope × magnitude), by inverting their distribution function.
    bright, faint = (10 ** (COUNT_SLOPE * limit) for limit in MAGNITUDE_RANGE)
    magnitude = math.log10(random.uniform(bright, faint)) / COUNT_SLOPE
    z0 = REDSHIFT_SLOPE * magnitude + REDSHIFT_OFFSET
    redshift = _draw_within(REDSHIFT_RANGE, lambda: random.gamma(3.0, z0))
    median = MEDIAN_RADIUS_ARCSEC * math.exp(
        RADIUS_SLOPE_PER_MAGNITUDE * (magnitude - MEDIAN_RADIUS_MAGNITUDE)
    )
    radius = _draw_within(
        RADIUS_RANGE_ARCSEC, lambda: median * math.exp(RADIUS_LOG_SCATTER * random.normal())
    )
    has_bulge = random.random() >= PURE_DISC_SHARE
    bulge_fraction = random.beta(*BULGE_FRACTION_BETA) if has_bulge else 0.0
    shape = LARGEST_SHAPE * random.beta(*SHAPE_BETA)
    # The components' radii are such that the whole has the radius that was drawn for it.
    disc_radius = radius / compute_half_light_radius(bulge_fraction, BULGE_TO_DISC_RADIUS, 1.0)
    disc = Component(1.0, "Scd", 1 - bulge_fraction, disc_radius)
    bulge = Component(4.0, "E", bulge_fraction, BULGE_TO_DISC_RADIUS * disc_radius)
    return Galaxy(
        magnitude=magnitude,
        redshift=redshift,
        components=(disc, bulge) if has_bulge else (disc,),
        bulge_fraction=bulge_fraction,
        half_light_radius_arcsec=radius,
        **_draw_placement(random, shape, largest_offset_pixels),
    )


def _draw_within(limits: tuple[float, float], one: Callable[[], float]) -> float:
    """Draw until the value lies within the limits.

    All limits in use hold most of the probability, so this ends soon.
    """
    while not limits[0] <= (value := one()) <= limits[1]:
        pass
    return value


def compute_half_light_radius(
    bulge_fraction: float, bulge_radius: float, disc_radius: float
) -> float:
    """Return the half-light radius of a de Vaucouleurs bulge with an exponential disc.

    They are concentric and have one axis ratio. All radii are circularised and in the same unit.
    """
    low, high = sorted((bulge_radius, disc_radius))
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        inside = bulge_fraction * _compute_light_within(middle / bulge_radius, 4, 7.669249442500804)
        inside += (1 - bulge_fraction) * _compute_light_within(
            middle / disc_radius, 1, 1.6783469900166605
        )
        low, high = (middle, high) if inside < 0.5 else (low, middle)
    return (low + high) / 2


def _compute_light_within(radius: float, sersic_index: int, b: float) -> float:
    """Return the share of a Sérsic profile's light within ``radius`` half-light radii.

    It is the regularised gamma function P(2n, b·r^(1/n)), a finite sum because 2n is an integer
    (Graham & Driver 2005, PASA 22, 118, equation 2).
    """
    x = float(b * radius ** (1 / sersic_index))
    term, terms = 1.0, 1.0
    for k in range(1, 2 * sersic_index):
        term *= x / k
        terms += term
    return 1 - math.exp(-x) * terms


# COSMOS catalogue ---------------------------------------------------------------------------------


def draw_from_catalogue(
    path: Path, random: np.random.Generator, largest_offset_pixels: float
) -> Galaxy:
    """Draw a galaxy of the COSMOS catalogue ``path``, centred within the offset along x and y.

    All galaxies within the limits on magnitude and size are equally likely. Raises StoreError if
    there are hardly any.
    """
    catalogue = _open_catalogue(path)
    for _ in range(LARGEST_NUMBER_OF_TRIES):
        record = catalogue.getParametricRecord(int(random.integers(len(catalogue))))
        components, bulge_fraction, radius = _make_components(record)
        if record["mag_auto"] >= MAGNITUDE_RANGE[0] and radius <= RADIUS_RANGE_ARCSEC[1]:
            break
    else:
        raise StoreError(
            f"{path}: too few galaxies are fainter than F814W {MAGNITUDE_RANGE[0]} and smaller "
            f"than {RADIUS_RANGE_ARCSEC[1]}″; is this a COSMOS catalogue?"
        )
    # One shape for both components: the single Sérsic fit's, which describes the galaxy as a whole;
    # the disc's where there is no usable single fit.
    axis_ratio = float(record["sersicfit" if record["viable_sersic"] else "bulgefit"][3])
    shape = min((1 - axis_ratio) / (1 + axis_ratio), LARGEST_SHAPE)
    return Galaxy(
        magnitude=float(record["mag_auto"]),
        redshift=float(np.clip(record["zphot"], *REDSHIFT_RANGE)),
        components=components,
        bulge_fraction=bulge_fraction,
        half_light_radius_arcsec=radius,
        **_draw_placement(random, shape, largest_offset_pixels),
    )


def _make_components(record: Mapping[str, Any]) -> tuple[tuple[Component, ...], float, float]:
    """Return components, bulge fraction and half-light radius (arcsec) of a fit.

    The templates are chosen by GalSim's rule.
    """
    if record["use_bulgefit"]:
        _, bulge_flux, disc_flux = (float(flux) for flux in record["flux"][:3])
        _, bulge_radius, disc_radius = (float(radius) for radius in record["hlr"][:3])
        fraction = bulge_flux / (bulge_flux + disc_flux)
        disc = Component(1.0, "Scd", 1 - fraction, disc_radius)
        bulge = Component(4.0, "E", fraction, bulge_radius)
        return (
            (disc, bulge),
            fraction,
            compute_half_light_radius(fraction, bulge_radius, disc_radius),
        )
    index = float(np.clip(record["sersicfit"][2], *SERSIC_RANGE))
    index = round(round(index / SERSIC_STEP) * SERSIC_STEP, 2)
    radius = float(record["hlr"][0])
    if index < INTERMEDIATE_FROM:
        return (Component(index, "Scd", 1.0, radius),), 0.0, radius
    if index < ELLIPTICAL_FROM:
        return (Component(index, "Sbc", 1.0, radius),), 0.0, radius
    return (Component(index, "E", 1.0, radius),), 1.0, radius


@lru_cache(maxsize=1)
def _open_catalogue(path: Path) -> galsim.COSMOSCatalog:
    return galsim.COSMOSCatalog(path.name, dir=str(path.parent), use_real=False)


def find_catalogue(name: str) -> Path:
    """Return the path of a catalogue; galsim_download_cosmos says where a bare file name lies.

    ``cosmos`` stands for the file that $CEPHEID_COSMOS names, else for the first sample that
    galsim_download_cosmos has left. Raises StoreError where there is none.
    """
    path = Path(name)
    if name == COSMOS:
        return _find_cosmos()
    return path if path.name != name else Path(galsim.meta_data.share_dir) / name


def _find_cosmos() -> Path:
    if named := os.environ.get(COSMOS_VARIABLE):
        return Path(named)
    share = Path(galsim.meta_data.share_dir)
    for sample in COSMOS_SAMPLES:
        path = share / f"COSMOS_{sample}_training_sample" / f"real_galaxy_catalog_{sample}.fits"
        if path.is_file():
            return path
    raise StoreError(
        f"there is no COSMOS catalogue in {share}, and ${COSMOS_VARIABLE} is not set; fix: run "
        f"`galsim_download_cosmos`, set {COSMOS_VARIABLE} to the file real_galaxy_catalog_….fits "
        "that you have, or leave out catalogue=cosmos"
    )


def _digest_catalogue(path: Path) -> dict[str, str]:
    """Return the SHA-256 digests of the three files by name.

    Raises StoreError where one cannot be read, or where they are of another version.
    """
    stem, suffix = os.path.splitext(path.name)
    names = [path.name, f"{stem}_fits{suffix}", f"{stem}_selection{suffix}"]
    try:
        digests = {
            name: hashlib.sha256((path.parent / name).read_bytes()).hexdigest() for name in names
        }
    except OSError as error:
        raise StoreError(
            f"{error.filename}: cannot be read ({error.strerror}). A COSMOS catalogue is three "
            f"files, {', '.join(names)}; `galsim_download_cosmos` fetches them; without "
            f"catalogue=cosmos none is needed."
        ) from error
    _refuse_other_version([path.parent / name for name in names])
    return digests


def _refuse_other_version(files: Sequence[Path]) -> None:
    """Raise StoreError where the files are not those of one catalogue, or lack what is drawn."""
    rows, columns = {}, set()
    for file in files:
        try:
            with warnings.catch_warnings(), fits.open(file) as content:
                # A file that was cut short; astropy only warns.
                warnings.filterwarnings("error", "File may have been truncated")
                rows[file.name] = int(content[1].header["NAXIS2"])
                columns |= set(content[1].columns.names)
        except NO_TABLE as error:
            why = "it holds no table" if isinstance(error, IndexError) else error
            raise StoreError(
                f"{file}: not a whole table of a COSMOS catalogue ({why}); "
                "fix: fetch it again with `galsim_download_cosmos`"
            ) from error
    if len(set(rows.values())) > 1:
        found = ", ".join(f"{name} has {count:,}" for name, count in rows.items())
        raise StoreError(
            f"{files[0]}: its files have different numbers of galaxies ({found}); "
            "fix: take all three from one version of the catalogue"
        )
    if missing := [name for name in NEEDED_COLUMNS if name not in columns]:
        raise StoreError(
            f"{files[0]}: another version of the catalogue: no column {', '.join(missing)}; "
            "fix: fetch the present one with `galsim_download_cosmos`"
        )
