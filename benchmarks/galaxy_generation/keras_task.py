"""galaxy_generation in Keras 3; it was published in Keras on TensorFlow.

The flow is sampled the plain way, as the paper did: each of its layers is passed once for each
latent. Noise and weights are those of the task in PyTorch, so the images are, too, turned by half a
turn as ``galaxy_vae.model`` says.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cepheid.benchmarks.galaxy_generation.framework_free import GalaxyMaker
from cepheid.benchmarks.galaxy_generation.weights_file import (
    UNTRAINED,
    find_path,
    find_published,
    other_network,
    read_file,
)
from cepheid.benchmarks.galaxy_vae.framework_free import Sizes, find_flux_scales
from cepheid.benchmarks.galaxy_vae.keras_model import (
    FluxScaling,
    convert_to_keras,
    cut_off_overflow,
    make_decoder,
)
from cepheid.reference.keras.backend import (
    autotune,
    describe,
    engine,
    keras,
    name_way,
    read,
    set_seed,
    use_threads,
)
from cepheid.reference.keras.flow import Flow
from cepheid.reference.keras.task import Tensor, Traced, set_precision, trace
from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.run.checkpoint import parse_weights
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.run.generation import GenerationWorkload

DECODED_TOGETHER = 100  # as in the task in PyTorch
WHY_FP32 = "bfloat16 shifts colours; --set precision=bf16 chooses it"


def make(config: RunConfig, ranks: Ranks) -> "KerasGeneration":
    """Return what generates with the weights of the definition."""
    path, expected = find_published(config)
    content, digest = read_file(path, expected)
    return KerasGeneration(config, ranks, convert_to_keras(parse_weights(path, content)), digest)


def make_for_timing(config: RunConfig, ranks: Ranks) -> "KerasGeneration":
    """Return what generates where only time matters; its weights may be untrained."""
    if find_path(config.definition.scale).is_file():
        return make(config, ranks)
    return KerasGeneration(config, ranks, {}, UNTRAINED)


class KerasGeneration(GalaxyMaker):
    """Galaxies from noise; ``weights`` are by their paths in Keras, none for untrained ones."""

    def __init__(
        self, config: RunConfig, ranks: Ranks, weights: Mapping[str, np.ndarray], digest: str
    ) -> None:
        super().__init__(config, ranks, digest)
        self.weights = weights

    def build(self) -> int:
        """Make the network with its weights; return the number of parameters."""
        execution = use_threads(self.config.execution)
        set_seed(self.config.seed)
        sizes = Sizes.parse(self.definition.model, self.definition.data)
        self.decoder = make_decoder(sizes)
        self.flow = Flow(sizes.latents, sizes.flow_layers, sizes.flow_hidden)
        self.flux_scaling = FluxScaling(find_flux_scales(sizes.mean_maxima))
        networks = [self.decoder, *self.flow.networks]
        variables = [variable for network in networks for variable in network.variables]
        for variable in variables if self.weights else ():
            given, wanted = self.weights.get(variable.path), tuple(variable.shape)
            if given is None or given.shape != wanted:
                found = None if given is None else given.shape
                path = str(find_path(self.definition.scale))
                raise other_network(path, variable.path, wanted, found)
            variable.assign(given)
        self._images = np.empty((0, sizes.bands, sizes.pixels, sizes.pixels), np.float32)
        self._program, self._traced = engine.Program(variables), Traced()
        self.use_execution(execution)
        return sum(int(np.prod(variable.shape)) for variable in variables)

    def warm_up(self, images: int) -> None:
        """Choose the execution settings, then generate at least ``images`` at each batch size.

        The noise is that of no repetition.
        """
        latents = self.draw_normal("settling", DECODED_TOGETHER)
        requested = self.execution
        if requested.precision == "auto":
            requested = requested.with_setting("precision", "fp32", WHY_FP32)

        def step(settings: Execution) -> str:
            self.use_execution(settings)
            self.decode(latents)
            return ""

        self.use_execution(autotune(requested, step, self.ranks))
        for count in self.counts:
            for repetition in range(-(-images // count)):
                self.decode(self._carry(self.draw_normal("warm-up", count, repetition)))

    def implementation(self) -> Mapping[str, Any]:
        """Return framework, device and execution, for readers of the log."""
        way = name_way(self.execution)
        return describe(self.ranks, self.execution) | {
            "weights": self.weights_digest[:12],
            "sampling": f"{way}, the plain way",
            "decoding": f"{way}, up to {DECODED_TOGETHER} images together",
        }

    def sample(self, images: int, repetition: int) -> np.ndarray:
        """Draw the noise of this repetition and return its latents, (images, latents)."""
        return self._carry(self.draw_normal("generated images", images, repetition))

    def decode(self, latents: np.ndarray) -> np.ndarray:
        """Return the images of latents, (n, latents); the next call overwrites them."""
        count, together = len(latents), min(len(latents), DECODED_TOGETHER)
        if len(self._images) < count:
            rows = max(count, *self.counts)
            self._images = np.empty((rows, *self._images.shape[1:]), np.float32)
        for first in range(0, count, together):
            part = latents[first : first + together]
            # The last part is filled up to the traced shape; the filling is cut off again.
            filled = np.resize(part, (together, latents.shape[1]))
            decoded = read(self.traced["decode"](filled))
            self._images[first : first + len(part)] = decoded[: len(part)]
        return self._images[:count]

    def synchronize(self) -> None:
        """Return at once: latents and images have already been read."""

    def use_execution(self, settings: Execution) -> None:
        """Compute with these execution settings from now on; keep what was traced for them."""
        self.execution = settings
        precision = "bf16" if settings.precision == "bf16" else "fp32"
        set_precision(self.decoder, precision)
        # The last convolution stays in float32; ``model.py`` says why.
        *_, last = (one for one in self.decoder.layers if one.name.startswith("decoder.blocks."))
        last.dtype_policy = keras.DTypePolicy("float32")
        computations = {"sample": self._sample, "decode": self._make_images}
        self.traced = trace(self._traced, self._program, precision, settings.compile, computations)

    def _carry(self, noise: np.ndarray) -> np.ndarray:
        return read(self.traced["sample"](noise))

    def _sample(self, noise: Tensor) -> Tensor:
        return cut_off_overflow(self.flow.sample(noise))

    def _make_images(self, latents: Tensor) -> Tensor:
        images = self.flux_scaling.inverse(self.decoder(latents, training=False))
        return keras.ops.transpose(images, (0, 3, 1, 2))


WORKLOAD = GenerationWorkload(make, make_for_timing)
