"""What a lensing survey asks of a shape estimator beside its error: does it bias the shear?

Shear bias
    An estimate responds to a small shear as γ̂ = (1 + m)·γ + c, for each component (Heymans et al.
    2006, MNRAS 368, 1323). It is measured on galaxies of a calibration set of their own, which
    follow the rows of the dataset and were never trained on. Each is drawn with the shears ±γ along
    each component, with the same noise, so that shape and noise cancel in the difference of a pair
    (Pujol et al. 2019, A&A 621, A2). And each is observed a second time, turned by 90° with its
    noise and then lensed: in the mean over both, shape and noise cancel (the ring test of Nakajima
    & Bernstein 2007, AJ 133, 1763), and what is left is additive bias. The galaxies are the same
    ones after every run of a scale, so that two runs can be compared.

Response
    A network trained on a likelihood estimates the mean of a posterior, which lies between the
    galaxy and the prior's 0. So its response R = dê/dγ is below 1 and depends on signal-to-noise:
    raw m is far from 0 by construction and no fault. A survey calibrates the response and divides
    by it (as metacalibration does: Sheldon & Huff 2017, ApJ 841, 24). Here R is measured on one
    half of the galaxies, and what remains after the division on the other half.

PSF leakage
    α = dê/de_PSF (Jarvis et al. 2016, MNRAS 460, 2245), from galaxies drawn through PSFs that are
    sheared by ± the same, with the same noise. The network saw one round PSF and is told of no
    other: it takes the PSF's shape for the galaxy's.

Errors
    All are means over galaxies, which are independent of one another, so the standard error is the
    scatter over galaxies over √N; the jackknife of a mean is the same number. Those of a ratio of
    two halves follow to first order. The scatter is that of the response from galaxy to galaxy:
    noise and shape have cancelled.

Ellipticity, shear and frame are those of ``cepheid.reference.data.galaxies``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cepheid.reference.data import galaxies
from cepheid.reference.data.galaxies import PIXEL_DTYPE, SkyParameters
from cepheid.reference.data.galaxies.population import Galaxy
from cepheid.reference.data.store import OnProgress, split_rows
from cepheid.reference.galaxies.shapes import RADIUS_SQUARED
from cepheid.reference.galaxies.stamps import Estimate, Stamps
from cepheid.reference.run.report import Table, Value

SHEAR = 0.02  # of galaxies, and of the PSF for the leakage; R is linear to its square
# Of isolated galaxies under a constant shear of 0.01 to 0.05: the LSST Project's requirement on
# shape measurement (https://community.lsst.org/t/3417), a state of the art rather than a budget.
LSST_M, LSST_C = 1e-3, 1e-4
CHUNK_GALAXIES = 64  # estimated together: 12 stamps of each, three batches of 256
# Fixed, so that two reports can be compared; 230 to 740 of mini's 2,000 galaxies in each bin.
SNR_EDGES = (0.0, 10.0, 20.0, 40.0, 80.0, math.inf)
RADIUS_EDGES_ARCSEC = (0.0, 0.3, 0.5, 0.8, math.inf)
_NOISE_STREAM = 2  # of a galaxy's own random numbers; the dataset uses 0 and 1


class Measurement(NamedTuple):
    """A number with its standard error."""

    value: float
    error: float

    def row(self, name: str) -> dict[str, Value]:
        """Return the number and its error as two entries of a table's row."""
        return {name: self.value, f"{name}_error": self.error}


def make_report(data: Stamps, estimate: Estimate, on_progress: OnProgress) -> list[Table]:
    """Return the tables of shear bias and leakage, and of errors by signal-to-noise and size.

    Shear bias and leakage are measured on half as many new galaxies as the evaluation set has.
    """
    rows = slice(data.train_samples, None)
    parameters, labels = data.parameters, data.sky.labels[rows]
    count = max(4, len(labels) // 2)
    responses = measure_responses(
        parameters, range(parameters.samples, parameters.samples + count), estimate, on_progress
    )
    mean, scale = estimate(data.sky.stamps[rows])
    truth = np.stack([labels["e1"], labels["e2"]], axis=1).astype(float)
    errors = Errors.from_residuals(mean - truth, scale)
    radius = labels["half_light_radius_arcsec"]
    return [
        make_shear_bias_table(responses),
        make_error_table("Errors by signal-to-noise", "snr", labels["snr"], SNR_EDGES, errors),
        make_error_table(
            "Errors by half-light radius", "radius_arcsec", radius, RADIUS_EDGES_ARCSEC, errors
        ),
    ]


# The calibration set ------------------------------------------------------------------------------


def apply_shear(galaxy: Galaxy, shear: complex) -> Galaxy:
    """Lens a galaxy by the reduced shear γ1 + i·γ2; size, flux and place stay.

    e becomes (e + γ)/(1 + γ*·e) (Seitz & Schneider 1997, A&A 318, 687).
    """
    e = complex(galaxy.e1, galaxy.e2)
    lensed = (e + shear) / (1 + shear.conjugate() * e)
    return replace(galaxy, e1=lensed.real, e2=lensed.imag)


def add_noise(electrons: np.ndarray, sky: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Return electrons with Poisson noise of signal and sky; the mean of the sky is subtracted.

    ``normal`` are draws of N(0, 1) in the shape of ``electrons``, and the noise is a smooth
    function of all three. So two images of nearly the same galaxy get nearly the same noise, which
    no Poisson generator provides. λ + √λ·z + (z² − 1)/6 are the first terms of Cornish & Fisher's
    expansion of the Poisson quantile. With the sky's 884 electrons and more they agree with the
    exact quantile within its rounding to whole electrons (the noise is 30 and more).
    """
    expected = np.maximum(electrons + sky, 0)
    return np.asarray(electrons + np.sqrt(expected) * normal + (normal**2 - 1) / 6)


def observe(parameters: SkyParameters, electrons: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Return noisy stamps in units of the sky noise, float16 as stored, (…, bands, y, x)."""
    sky = np.array(parameters.sky_electrons)[:, None, None]
    return (add_noise(electrons, sky, normal) / np.sqrt(sky)).astype(PIXEL_DTYPE)


def draw_sheared_stamps(
    parameters: SkyParameters, galaxy: Galaxy, normal: np.ndarray
) -> np.ndarray:
    """Draw the lensed galaxy for the ring test.

    Returns (component of the shear, +/−, rotated by 0/90°, bands, y, x). ``normal`` is its noise,
    draws of N(0, 1), (bands, y, x). A rotation by 90° changes the sign of the galaxy's e and of a
    shear. So only half of the images are drawn: galaxy and noise rotated, then lensed by +γ, equal
    those lensed by −γ, then rotated.
    """
    shears = (SHEAR + 0j, -SHEAR + 0j, SHEAR * 1j, -SHEAR * 1j)
    drawn = [galaxies.compute_electrons(parameters, apply_shear(galaxy, shear)) for shear in shears]
    upright = observe(parameters, _arrange_by_component_and_sign(drawn), normal)
    turned = np.rot90(upright[:, ::-1], axes=(-2, -1))
    return np.stack([upright, turned], axis=2)


def draw_leakage_stamps(
    parameters: SkyParameters, galaxy: Galaxy, normal: np.ndarray
) -> np.ndarray:
    """Draw the galaxy through sheared PSFs.

    Returns (component of the shear, +/−, bands, y, x); ``normal`` is (bands, y, x).
    """
    shears = ((SHEAR, 0.0), (-SHEAR, 0.0), (0.0, SHEAR), (0.0, -SHEAR))
    drawn = [galaxies.compute_electrons(parameters, galaxy, shear) for shear in shears]
    return observe(parameters, _arrange_by_component_and_sign(drawn), normal)


def _arrange_by_component_and_sign(drawn: Sequence[np.ndarray]) -> np.ndarray:
    """Stack images with the shears +γ1, −γ1, +γ2, −γ2 as (2, 2, bands, y, x)."""
    return np.stack(drawn).reshape(2, 2, *drawn[0].shape)


@dataclass(frozen=True)
class Responses:
    """The responses of single galaxies, for both components of e: (galaxies, 2) each."""

    response: np.ndarray
    additive: np.ndarray
    leakage: np.ndarray

    @classmethod
    def from_estimates(cls, lensed: np.ndarray, leaked: np.ndarray) -> "Responses":
        """Compute the responses from estimates (…, 2) of e1 and e2 on both kinds of stamps.

        R_j = ⟨ê_j(+γ_j) − ê_j(−γ_j)⟩/2γ, c_j = ⟨ê_j⟩ over both signs, shears and turns, and
        α_j = (ê_j(+p_j) − ê_j(−p_j))/2p.
        """
        by_turn = np.stack([lensed[:, j, 0, :, j] - lensed[:, j, 1, :, j] for j in (0, 1)], axis=2)
        by_psf = np.stack([leaked[:, j, 0, j] - leaked[:, j, 1, j] for j in (0, 1)], axis=1)
        return cls(
            response=by_turn.mean(axis=1) / (2 * SHEAR),
            additive=lensed.mean(axis=(1, 2, 3)),
            leakage=by_psf / (2 * SHEAR),
        )


def measure_responses(
    parameters: SkyParameters, indices: range, estimate: Estimate, on_progress: OnProgress
) -> Responses:
    """Draw galaxies ``indices``, lensed and through sheared PSFs, and estimate their responses."""
    lensed, leaked = [], []
    for chunk in split_rows(len(indices), CHUNK_GALAXIES):
        shown = [
            (galaxies.draw_galaxy(parameters, index), _draw_noise(parameters, index))
            for index in indices[chunk.start : chunk.stop]
        ]
        lensed.append(
            _estimate_means(estimate, [draw_sheared_stamps(parameters, *one) for one in shown])
        )
        leaked.append(
            _estimate_means(estimate, [draw_leakage_stamps(parameters, *one) for one in shown])
        )
        on_progress(chunk.stop, len(indices))
    return Responses.from_estimates(np.concatenate(lensed), np.concatenate(leaked))


def _draw_noise(parameters: SkyParameters, index: int) -> np.ndarray:
    stream = np.random.SeedSequence([parameters.seed, index, _NOISE_STREAM])
    shape = (len(parameters.bands), parameters.pixels, parameters.pixels)
    return np.random.default_rng(stream).standard_normal(shape)


def _estimate_means(estimate: Estimate, stamps: Sequence[np.ndarray]) -> np.ndarray:
    """Return estimated e1 and e2 of each galaxy's stamps in their layout, (galaxies, …, 2)."""
    layout = (len(stamps), *stamps[0].shape[:-3])
    flat = np.concatenate([of_one.reshape(-1, *of_one.shape[-3:]) for of_one in stamps])
    mean, _ = estimate(flat)
    return np.asarray(mean, dtype=float).reshape(*layout, 2)


# Shear bias ---------------------------------------------------------------------------------------


def average(values: np.ndarray) -> Measurement:
    """Return the mean over independent galaxies, (n,), with its standard error."""
    return Measurement(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))))


def divide(numerator: Measurement, denominator: Measurement) -> Measurement:
    """Return the ratio of two independent numbers, with its error to first order."""
    ratio = numerator.value / denominator.value
    error = math.hypot(numerator.error, ratio * denominator.error) / abs(denominator.value)
    return Measurement(ratio, error)


def make_shear_bias_table(responses: Responses) -> Table:
    """Return response, m, c and α of both components, raw and corrected for the response."""
    calibrating, tested = slice(0, None, 2), slice(1, None, 2)
    columns: list[dict[str, Measurement]] = []
    for j in (0, 1):
        response = responses.response[:, j]
        additive, leakage = responses.additive[:, j], responses.leakage[:, j]
        raw = average(response)
        correction = average(response[calibrating])
        left = divide(average(response[tested]), correction)
        columns.append(
            {
                "R, response": raw,
                "m, raw (R - 1)": Measurement(raw.value - 1, raw.error),
                "m, corrected": Measurement(left.value - 1, left.error),
                "c, raw": average(additive),
                "c, corrected": divide(average(additive[tested]), correction),
                "PSF leakage, raw": average(leakage),
                "PSF leakage, corrected": divide(average(leakage[tested]), correction),
            }
        )
    rows = tuple(
        {"quantity": name, **columns[0][name].row("e1"), **columns[1][name].row("e2")}
        for name in columns[0]
    )
    return Table(
        f"Shear bias, {len(responses.response):,} galaxies that were not trained on",
        rows,
        "corrected: divided by R of one half of the galaxies, measured on the other half.\n"
        f"For context: of isolated galaxies LSST asks |m| < {LSST_M:g} and |c| < {LSST_C:g}.",
    )


# Errors by bin ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Errors:
    """The errors of single galaxies.

    ``residual`` is estimate minus truth, (n, 2). ``radius_squared``, (n,), is its squared length in
    units of the posterior's own scale, χ² with 2 degrees of freedom if that is right.
    """

    residual: np.ndarray
    radius_squared: np.ndarray

    @classmethod
    def from_residuals(cls, residual: np.ndarray, scale: np.ndarray) -> "Errors":
        """Compute the errors from residuals (n, 2) and scale matrices L (n, 2, 2)."""
        white = np.linalg.solve(scale.astype(float), residual[:, :, None].astype(float))
        return cls(residual.astype(float), (white[:, :, 0] ** 2).sum(axis=1))


def root_mean_square(residual: np.ndarray) -> Measurement:
    """Return ``e_rmse``, the RMS of both components of residuals (n, 2); d√s = ds/(2√s)."""
    square = average((residual**2).mean(axis=1))
    rmse = math.sqrt(square.value)
    return Measurement(rmse, square.error / (2 * rmse) if rmse else 0.0)


def make_error_table(
    title: str, name: str, values: np.ndarray, edges: Sequence[float], errors: Errors
) -> Table:
    """Return RMSE, mean error and coverage of the galaxies between successive ``edges``.

    ``values`` are (n,). Bins with fewer than two galaxies have no error bar and are left out.
    """
    rows = []
    for low, high in pairwise(edges):
        inside = (values >= low) & (values < high)
        if inside.sum() < 2:
            continue
        residual, radius_squared = errors.residual[inside], errors.radius_squared[inside]
        coverage: dict[str, Value] = {}
        for metric, limit in RADIUS_SQUARED.items():
            coverage |= average(radius_squared < limit).row(metric)
        rows.append(
            {
                name: f"from {low:g}" if math.isinf(high) else f"{low:g} to {high:g}",
                "galaxies": int(inside.sum()),
                **root_mean_square(residual).row("e_rmse"),
                **average(residual[:, 0]).row("e1_bias"),
                **average(residual[:, 1]).row("e2_bias"),
                **coverage,
            }
        )
    return Table(title, tuple(rows))
