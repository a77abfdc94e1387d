"""What benchmarks on square images share: noise, the scale of pixels, given weights, and likeness.

Training may start from weights that somebody else has trained, as the definition says. The file is
one that ``torch.save`` wrote, as it is distributed, or one of safetensors; both are read without
running code.
"""

import io
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from cepheid.reference.run.checkpoint import DAMAGED, read_given_file
from cepheid.reference.torch.devices.values import to_device, widen
from cepheid.rules.errors import UserError

NOISE_BOXES = 4  # in each image of noise


def draw_images(count: int, pixels: int, generator: torch.Generator, channels: int = 3) -> Tensor:
    """Return random images, uint8 (count, pixels, pixels, channels)."""
    shape = (count, pixels, pixels, channels)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def draw_boxes(count: int, generator: torch.Generator) -> Tensor:
    """Return NOISE_BOXES boxes for each image: corners in shares of its side, (n, boxes, 4)."""
    sides = torch.rand(count, NOISE_BOXES, 2, generator=generator) / 2
    return torch.cat((sides, sides + 0.3), dim=2)


def keep_pixel_moments(network: nn.Module, facts: Mapping[str, Any]) -> None:
    """Let ``network`` keep mean and deviation of pixels, on its device but not in its state."""
    for name in ("pixel_mean", "pixel_deviation"):
        network.register_buffer(name, torch.tensor(facts[name]), persistent=False)


def scale_pixels(network: Any, images: Tensor) -> Tensor:
    """Return images as float32 (n, channels, y, x), channels last in memory."""
    return ((images.float() - network.pixel_mean) / network.pixel_deviation).permute(0, 3, 1, 2)


COUNTER = "num_batches_tracked"  # of torch's batch norms; nothing is computed from it
SAFETENSORS = ".safetensors"


def load_given_weights(
    module: nn.Module, path: Path, digest: str, own: str = "", rename: Callable[[str], str] = str
) -> str:
    """Copy weights and statistics of the same names from a file into ``module``.

    Return the SHA-256 of the file, which must be ``digest``. Tensors whose names begin with
    ``own`` stay as they are, if it is given. ``rename`` makes the module's names of
    those of the file. The file may hold more than the module has. Raises UserError where the file
    is missing, damaged or another one, or lacks something.
    """
    content, found_digest = read_given_file(path, digest)
    given = {rename(str(name)): value for name, value in _parse(path, content).items()}
    wanted = {
        name: value
        for name, value in module.state_dict().items()
        if COUNTER not in name and not (own and name.startswith(own))
    }
    for name, value in wanted.items():
        found = given.get(name)
        if not isinstance(found, Tensor) or found.shape != value.shape:
            has = tuple(found.shape) if isinstance(found, Tensor) else "nothing"
            raise UserError(
                f"{path}: expected a tensor of shape {tuple(value.shape)} as {name}, got {has}; "
                "fix: give the weights that the definition names"
            )
    module.load_state_dict({name: given[name] for name in wanted}, strict=False)
    return found_digest


def _parse(path: Path, content: bytes) -> Mapping[str, Any]:
    try:
        if path.suffix == SAFETENSORS:
            return load_safetensors(content)
        given = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (*DAMAGED, SafetensorError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path}: not a file of weights ({reason})") from error
    if not isinstance(given, Mapping):
        raise UserError(f"{path}: not a file of weights (expected a mapping)")
    return given


SIGMA, RADIUS = 1.5, 5  # pixels: the window of 11 x 11 of Wang et al. 2004
STABILITY = (0.01**2, 0.03**2)  # for a range of 1
LEAST_ERROR = 1e-10  # mean square: 100 dB


@cache
def make_window(pixels: int, place: torch.device) -> Tensor:
    """Return the Gaussian window along an axis, (pixels, pixels) in float64, at ``place``.

    At the edges images go on as their own mirror images.
    """
    offsets = torch.arange(-RADIUS, RADIUS + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / SIGMA) ** 2)
    places = torch.arange(pixels)[:, None] + offsets.long()
    mirrored = torch.remainder(places, 2 * pixels)
    mirrored = torch.where(mirrored < pixels, mirrored, 2 * pixels - 1 - mirrored)
    window = torch.zeros(pixels, pixels, dtype=torch.float64)
    window.scatter_add_(1, mirrored, (weights / weights.sum()).expand(pixels, -1))
    return to_device(window, place)


def compute_ssim(predicted: Tensor, true: Tensor) -> Tensor:
    """Return the mean structural similarity of images (…, y, x) in [0, 1], one each (…).

    Wang et al. 2004 (doi:10.1109/TIP.2003.819861), equation 13, as scikit-image has it with
    ``gaussian_weights=True, use_sample_covariance=False``, but with the pixels near the edges.
    """
    predicted, true = widen(predicted), widen(true)
    down, across = (make_window(side, true.device) for side in true.shape[-2:])

    def blur(images: Tensor) -> Tensor:
        return down @ images @ across.T

    one, other = blur(predicted), blur(true)
    variances = blur(predicted.square()) + blur(true.square()) - one.square() - other.square()
    covariance = blur(predicted * true) - one * other
    first, second = STABILITY
    similar = (2 * one * other + first) * (2 * covariance + second)
    similar /= (one.square() + other.square() + first) * (variances + second)
    return similar.mean(dim=(-2, -1))


def compute_psnr(predicted: Tensor, true: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of images (…, y, x) in [0, 1] in dB, one each (…)."""
    errors = (widen(predicted) - widen(true)).square().mean(dim=(-2, -1))
    return -10 * errors.clamp(min=LEAST_ERROR).log10()
