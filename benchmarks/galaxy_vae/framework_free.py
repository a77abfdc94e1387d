"""The parts of galaxy_vae that do not depend on the framework: sizes, data, noise, evaluation.

Images are noise-free stamps in units of the sky noise, (n, bands, pixels, pixels); means, standard
deviations, noise and latents are (n, latents).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from cepheid.benchmarks.galaxy_vae import quality
from cepheid.benchmarks.galaxy_vae.quality import Examined
from cepheid.reference.data.order import Share
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.galaxies import properties, stamps
from cepheid.reference.galaxies.stamps import (
    Galaxies,
    GalaxyHyperparameters,
    Stamps,
    crop_middle,
    reorient_stamps,
)
from cepheid.reference.run.report import Table

ALONE = Share(0, 1, 0)


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(GalaxyHyperparameters):
    """The hyperparameters of galaxy_vae; the flow has a rate and a clip norm of its own."""

    opt_flow_base_learning_rate: float
    opt_flow_gradient_clip_norm: float
    kl_weight: float


class Images(Stamps):
    """The middle of the noise-free stamps, and N(0, 1) to draw latents.

    If the encoder sees the observed stamp, its bands come before those of the noise-free one;
    ``split_input`` parts the two.
    """

    def __init__(self, shape: Galaxies, share: Share, sky: Any, source: Any) -> None:
        super().__init__(shape, share, sky, source)
        self.shape, pixels = shape, self.definition.model["pixels"]
        self.stamps = crop_middle(self.sky.noise_free, pixels)
        is_noisy = is_input_noisy(shape)
        self.observed = [crop_middle(self.sky.stamps, pixels)] if is_noisy else []

    def read_images(self, rows: np.ndarray, orientations: np.ndarray | None = None) -> np.ndarray:
        """Return copies of images, (rows, …), reoriented if there are ``orientations`` (rows,)."""
        stored = [*self.observed, self.stamps]
        if orientations is None:
            parts = [images[rows] for images in stored]
        else:
            parts = [reorient_stamps(images, rows, orientations) for images in stored]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def read_batch(self, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Return this rank's images and N(0, 1) to draw latents of the batch after ``samples``.

        They are (n, bands, pixels, pixels) and (n, latents). Images are flipped or transposed.
        """
        first = self.share.rank * self.share.batch
        rows, orientations = self.order.take(samples + first, self.share.batch)
        batch = self.shape.config.global_batch_size
        normal = draw_normal(self.shape, batch, "latents of step", samples)
        images = self.read_images(rows, orientations)
        return images, normal[first : first + self.share.batch]


class Networks(Protocol):
    """The trained networks of a framework; images are (n, bands, y, x), all else (n, latents)."""

    @property
    def evaluation_batch(self) -> int:
        """The samples that ``encode``, ``decode`` and ``examine`` take at a time."""

    def encode(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and standard deviations of the latents of images."""

    def decode(self, latents: np.ndarray) -> np.ndarray:
        """Return the images of latents."""

    def sample(self, noise: np.ndarray) -> np.ndarray:
        """Return latents of new galaxies from any number of N(0, 1) ``noise``."""

    def examine(self, images: np.ndarray, noise: np.ndarray, generated: np.ndarray) -> Examined:
        """Measure the ``images`` of ``read_images`` and what the networks make of them.

        That are latents drawn from their posteriors by ``noise``, and new galaxies with the
        latents ``generated``.
        """


def is_input_noisy(shape: Galaxies) -> bool:
    """Return whether the encoder sees the observed stamp and not the noise-free one."""
    return bool(shape.definition.model.get("encoder_input") == "noisy")


def split_input(shape: Galaxies, images: Any) -> tuple[Any, Any]:
    """Return what the encoder sees and what the decoder shall give, of ``read_images``."""
    bands = len(shape.bands)
    return images[:, :bands], images[:, -bands:]


def make_noise_arrays(shape: Galaxies, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noise in the shapes and types of ``read_batch``, (count, …), for the warm-up."""
    noise, _ = stamps.make_noise_arrays(shape, count)
    model = shape.definition.model
    images = np.abs(crop_middle(noise, model["pixels"]))
    normal = np.zeros((count, model["latents"]), np.float32)
    return np.concatenate([images] * (1 + is_input_noisy(shape)), axis=1), normal


def draw_normal(shape: Galaxies, count: int, purpose: str, *keys: int) -> np.ndarray:
    """Draw N(0, 1) for ``count`` latent vectors, (count, latents), the same on every rank."""
    random = make_generator(shape.config.seed, purpose, *keys)
    size = (count, shape.definition.model["latents"])
    return random.standard_normal(size, dtype=np.float32)


def examine_all(
    data: Images,
    networks: Networks,
    share: Share,
    sum_over_ranks: Callable[[np.ndarray], np.ndarray],
) -> Examined:
    """Measure the evaluation set and as many new galaxies, of which ``share`` is ours.

    ``sum_over_ranks`` returns the sum of an array of any shape over all ranks.
    """
    rows, shape = data.evaluation_rows, data.shape
    latent_noise = draw_normal(shape, len(rows), "latents of the evaluation")
    generated = draw_normal(shape, len(rows), "generated galaxies")
    mine = np.arange(share.rank, len(rows), share.ranks)
    generated[mine] = networks.sample(generated[mine])
    parts = []
    for some, kept in stamps.fill_batches(mine, networks.evaluation_batch):
        images = data.read_images(rows[some])
        examined = networks.examine(images, latent_noise[some], generated[some])
        parts.append(examined.first(kept))
    return quality.join_parts(parts, mine, len(rows), sum_over_ranks)


def make_report(
    data: Images, networks: Networks, on_progress: Callable[[int, int], None]
) -> Sequence[Table]:
    """Return distances beside those of real galaxies, and errors by band and brightness."""
    on_progress(0, 1)
    examined = examine_all(data, networks, ALONE, sum_over_ranks=lambda values: values)
    facts, rows = data.definition.data, data.evaluation_rows
    others = data.stamps[: min(len(rows), data.train_samples)]
    of_others = properties.measure(others, facts["bands"], facts["pixel_scale_arcsec"])
    tables = [
        quality.make_distance_table(examined, of_others, facts["bands"]),
        quality.make_error_table(examined, data.sky.labels["snr"][rows], facts["bands"]),
        quality.make_band_table(examined, facts["bands"]),
    ]
    on_progress(1, 1)
    return tables


def draw_galaxies(data: Images, networks: Networks) -> Any:
    """Return a figure of real, reconstructed and generated galaxies."""
    from cepheid.benchmarks.galaxy_vae import pictures
    from cepheid.reference.galaxies.pictures import find_nearest  # astropy is slow to import

    rows = data.evaluation_rows
    snr = np.asarray(data.sky.labels["snr"][rows])
    chosen = rows[find_nearest(snr, pictures.SIGNAL_TO_NOISE)]
    padded = np.resize(chosen, networks.evaluation_batch)
    mean, _ = networks.encode(split_input(data.shape, data.read_images(padded))[0])
    normal = draw_normal(data.shape, len(padded), "generated galaxies")
    return pictures.draw_panel(
        data.parameters,
        real=data.stamps[chosen],
        reconstructed=networks.decode(mean)[: len(chosen)],
        generated=networks.decode(networks.sample(normal)),
    )


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
    return np.array(mean_maxima, np.float32) / np.float32(FLUX_DIVISOR)


def scale_fluxes(images: np.ndarray, mean_maxima: Sequence[float]) -> np.ndarray:
    """Return what the networks see of images in units of the sky noise, (…, bands, y, x).

    ``model`` explains the scaling, and each framework has its own for training.
    """
    values = images.astype(np.float32) / find_flux_scales(mean_maxima)[:, None, None]
    with np.errstate(over="ignore", invalid="ignore"):  # of images that are not finite
        return values / np.sqrt(1 + values * values)
