"""What the quality of galaxy_vae is, from what was measured on each galaxy.

explained_signal
    1 − Σ_g w_g min(R_g, S_g) / Σ_g w_g S_g with w_g = 1/(S_g + 32) over the galaxies g of the
    evaluation set. S_g is the power of the noise-free image, Σ of squares over bands and pixels in
    units of the sky noise (so that bands weigh as a survey sees them), and R_g that of
    reconstruction minus image. The 32 is the noise floor: the power of the sky noise along 32
    directions, which is what a noisy image would leave of errors if its latents were the best 32
    numbers to describe it. A bright galaxy counts by the share of it that is explained, one below
    the floor hardly at all. An error above the image itself counts as that image: nothing of it is
    explained, and no single galaxy outweighs the others.

flow_gain_nats
    Negative log likelihood of the Gaussian that has mean and covariance of the held-out galaxies'
    latents, minus that of the flow on those latents: per galaxy, higher is better. The Gaussian
    knows the held-out galaxies, so that one fitted to training galaxies would only be worse.
    Latents are draws from the encoder's posteriors, as the flow is trained on.

generated_distance
    The mean over magnitude, size, e1, e2 and five colours of the distance between as many
    generated galaxies as the evaluation set has and the real ones of that set; see ``properties``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from cepheid.reference.galaxies import properties
from cepheid.reference.run.report import Table, Value

NOISE_FLOOR = 32.0  # squared sky noise, one for each latent
SNR_EDGES = (0.0, 10.0, 20.0, 40.0, 80.0, math.inf)


@dataclass(frozen=True)
class Examined:
    """The measurements of single galaxies: of the evaluation set and, in ``generated``, new ones.

    Errors and signals, (n, bands), are sums of squares in units of the sky noise.
    """

    reconstruction_errors: np.ndarray
    signals: np.ndarray
    flow_nll: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    real: np.ndarray
    reconstructed: np.ndarray
    generated: np.ndarray

    def first(self, count: int) -> "Examined":
        """Return the first ``count`` rows, in float64."""
        values = (getattr(self, field.name) for field in fields(self))
        return Examined(*(value[:count].astype(np.float64) for value in values))


def join_parts(
    parts: Sequence[Examined],
    rows: np.ndarray,
    count: int,
    sum_over_ranks: Callable[[np.ndarray], np.ndarray],
) -> Examined:
    """Return all ``count`` rows, of which ``parts`` are this rank's ``rows``, (n,).

    ``sum_over_ranks`` returns the sum of an array over all ranks.
    """
    columns = []
    for field in fields(Examined):
        values = np.concatenate([getattr(part, field.name) for part in parts])
        everything = np.zeros((count, *values.shape[1:]))
        everything[rows] = values
        columns.append(sum_over_ranks(everything))
    return Examined(*columns)


def compute_metrics(examined: Examined, bands: str) -> dict[str, float]:
    """Return the quality metrics of the definition and every single distance."""
    distances = properties.compute_distances(examined.generated, examined.real, bands)
    return {
        "explained_signal": explained_signal(
            examined.reconstruction_errors.sum(1), examined.signals.sum(1), NOISE_FLOOR
        ),
        "flow_gain_nats": flow_gain(examined.mean, examined.scale, examined.flow_nll),
        "generated_distance": properties.average_distances(distances),
        **{f"distance_{name}": value for name, value in distances.items()},
    }


def explained_signal(errors: np.ndarray, signals: np.ndarray, noise_floor: float) -> float:
    """Return ``explained_signal`` of errors R_g and signals S_g, (n,) each."""
    weights = 1 / (signals + noise_floor)
    return 1 - float((weights * np.minimum(errors, signals)).sum() / (weights * signals).sum())


def flow_gain(mean: np.ndarray, scale: np.ndarray, flow_nll: np.ndarray) -> float:
    """Return ``flow_gain_nats`` of posteriors N(mean, scale²), (n, latents) each.

    The flow has the negative log likelihoods ``flow_nll``, (n,), on them.
    """
    covariance = np.cov(mean.T, bias=True) + np.diag(np.square(scale).mean(0))
    return gaussian_entropy(covariance) - float(flow_nll.mean())


def gaussian_entropy(covariance: np.ndarray) -> float:
    """Return ½ log det 2πe·Σ in nats, of a covariance (d, d).

    No Gaussian has a lower negative log likelihood per sample on samples with this covariance.
    """
    log_determinant = float(np.linalg.slogdet(covariance)[1])
    return 0.5 * (log_determinant + len(covariance) * math.log(2 * math.pi * math.e))


# Report -------------------------------------------------------------------------------------------


def make_distance_table(examined: Examined, others: np.ndarray, bands: str) -> Table:
    """Return the distance of each property, beside that of other held-out galaxies.

    ``others`` are their properties, (m, properties).
    """
    kinds = {
        "generated": examined.generated,
        "reconstructed": examined.reconstructed,
        "real": others,
    }
    distances = {
        kind: properties.compute_distances(values, examined.real, bands)
        for kind, values in kinds.items()
    }
    rows: list[dict[str, Value]] = [
        {"property": name, **{kind: each[name] for kind, each in distances.items()}}
        for name in properties.list_properties(bands)
    ]
    return Table(
        f"Distance from {len(examined.real):,} held-out galaxies, in standard deviations",
        tuple(rows),
        "Wasserstein-1; real: as many other held-out galaxies, which is the floor.",
    )


def make_error_table(examined: Examined, snr: np.ndarray, bands: str) -> Table:
    """Return the errors of reconstructions by the signal-to-noise of the galaxy, (n,)."""
    names = properties.list_properties(bands)
    errors = np.abs(examined.reconstructed - examined.real)
    magnitude = errors[:, names.index("magnitude")]
    shape = np.hypot(errors[:, names.index("e1")], errors[:, names.index("e2")])
    colour = errors[:, names.index("g_r")]
    rows: list[dict[str, Value]] = []
    for low, high in pairwise(SNR_EDGES):
        inside = (snr >= low) & (snr < high)
        if not inside.any():
            continue
        power = examined.reconstruction_errors[inside].sum(1), examined.signals[inside].sum(1)
        rows.append(
            {
                "snr": f"from {low:g}" if math.isinf(high) else f"{low:g} to {high:g}",
                "galaxies": int(inside.sum()),
                "explained_signal": explained_signal(*power, NOISE_FLOOR),
                "r_magnitude_error": float(np.median(magnitude[inside])),
                "g_r_error": float(np.median(colour[inside])),
                "e_error": float(np.median(shape[inside])),
            }
        )
    return Table(
        "Reconstruction of noise-free images by signal-to-noise", tuple(rows), "Median errors."
    )


def make_band_table(examined: Examined, bands: str) -> Table:
    """Return the share of the signal that reconstructions explain in each band."""
    rows: list[dict[str, Value]] = [
        {
            "band": band,
            "explained_signal": explained_signal(
                examined.reconstruction_errors[:, number], examined.signals[:, number], NOISE_FLOOR
            ),
        }
        for number, band in enumerate(bands)
    ]
    return Table("Reconstruction by band", tuple(rows))
