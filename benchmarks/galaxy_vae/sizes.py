"""The sizes of autoencoder and flow, and the constants of their layers, in every framework."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

DENSE_UNITS = 256
FLUX_DIVISOR = 2.5
OVERFLOW = 1e4  # nats and latents beyond it are cut off, by a function of each framework
LARGEST_LOGIT = 15.0  # 1,280 times s; the brightest pixel of 8,000 galaxies has 66
# The sky is dark: scaled pixels have a mean of 0.019 in every band, sigmoid(−3.94). From a bias of
# 0 the first thousands of galaxies teach the decoder nothing but that.
FIRST_LOGIT = -3.94
FIRST_SLOPE = 0.25  # of every PReLU
FIRST_SCALE = -3.0  # before the softplus: latents start with a standard deviation of 0.05
MINIMUM_SCALE = 1e-5  # added to the softplus, as in galaxy_shape


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a definition says about the networks; a decoder alone has no batch norms.

    ``filters`` are those of the encoder, which the decoder mirrors. ``mean_maxima`` are the I_b of
    the bands.
    """

    bands: int
    pixels: int
    filters: tuple[int, ...]
    latents: int
    flow_layers: int
    flow_hidden: tuple[int, ...]
    prelu: str
    mean_maxima: tuple[float, ...]
    batch_norm_epsilon: float = 0.0
    batch_norm_momentum: float = 0.0

    @classmethod
    def parse(cls, model: Mapping[str, Any], data: Mapping[str, Any]) -> "Sizes":
        """Return the sizes in the sections ``model`` and ``data`` of a definition."""
        known = {field.name for field in fields(cls)}
        facts: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list | tuple) else value
            for key, value in model.items()
            if key in known
        }
        return cls(bands=len(data["bands"]), **facts)

    @property
    def least_side(self) -> int:
        """The pixels along a side of the smallest maps."""
        return self.pixels // (1 << len(self.filters))

    @property
    def norm_options(self) -> dict[str, Any]:
        """The keyword arguments of what makes the norm of the encoder's inputs."""
        return {"epsilon": self.batch_norm_epsilon, "momentum": self.batch_norm_momentum}


def find_flux_scales(mean_maxima: Sequence[float]) -> np.ndarray:
    """Return the divisors s of the bands, (bands,), float32, from the I_b; see ``model``."""
    scales: np.ndarray = np.array(mean_maxima, np.float32) / np.float32(FLUX_DIVISOR)
    return scales


def scale_fluxes(images: np.ndarray, mean_maxima: Sequence[float]) -> np.ndarray:
    """Return what the networks see of images in units of the sky noise, (…, bands, y, x).

    ``model`` explains the scaling, and each framework has its own for training.
    """
    values = images.astype(np.float32) / find_flux_scales(mean_maxima)[:, None, None]
    with np.errstate(over="ignore", invalid="ignore"):  # of images that are not finite
        scaled: np.ndarray = values / np.sqrt(1 + values * values)
    return scaled
