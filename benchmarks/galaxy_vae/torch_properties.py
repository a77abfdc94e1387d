"""The properties of images in torch, whose sums over pixels are taken where the images are."""

import numpy as np
import torch
from torch import Tensor

from benchmarks.galaxy_vae import properties


def measured(images: Tensor, bands: str, pixel_scale_arcsec: float) -> np.ndarray:
    """As ``properties.measured``."""
    window = properties.window_moments(images.shape[-1], pixel_scale_arcsec)
    sums = images.float().flatten(2) @ torch.from_numpy(window).to(images.device)
    return properties.of_sums(sums.cpu().numpy(), bands)
