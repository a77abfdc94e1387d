"""galaxy_generation in PyTorch: noise to latents, latents to images, and how good they are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.galaxy_generation import quality, weights
from benchmarks.galaxy_generation.model import Generative
from benchmarks.galaxy_vae import properties, torch_properties
from benchmarks.galaxy_vae.sampling import NoCompilerError, Sampler, eager_sampler, native_sampler
from benchmarks.galaxy_vae.stamps import middle
from benchmarks.galaxy_vae.task import within_reach
from reference.data import galaxies, store
from reference.run.config import Execution, RunConfig
from reference.run.generate import Times
from reference.run.report import Table
from reference.run.seeding import generator
from reference.torch import execution, precision
from reference.torch.compilation import Compiled
from reference.torch.distributed import TorchRanks
from rules.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Images that are decoded together: on CPUs as many as the caches and the compiler like, on GPUs
# enough to fill one.
DECODED_TOGETHER = {"cpu": 100, "cuda": 1000}
# bfloat16 is taken only where the images' properties are distributed as float32's are: so close, as
# ``generated_distance`` measures it, which then is worse by that much at most.
LARGEST_DISTANCE = 0.03
MOST_SHOWN = 24  # galaxies of each kind, in the picture


def create(config: RunConfig, ranks: TorchRanks) -> "GalaxyGeneration":
    """The task that the timed loop drives."""
    return GalaxyGeneration(config, ranks)


def create_for_timing(config: RunConfig, ranks: TorchRanks) -> "GalaxyGeneration":
    """The task where only time matters: with weights that nobody has trained if need be."""
    return GalaxyGeneration(config, ranks, weights.published_or_untrained(config))


class GalaxyGeneration:
    """Galaxies from noise, by the flow and the decoder of galaxy_vae.

    Images are float32, in units of the sky noise, (n, bands, pixels, pixels) in the host's memory.
    """

    def __init__(
        self, config: RunConfig, ranks: TorchRanks, given: weights.Weights | None = None
    ) -> None:
        if ranks.world_size > 1:
            raise UserError(
                f"{config.definition.name} generates on one device: start it without torchrun"
            )
        assert config.definition.generation is not None
        self.config, self.ranks = config, ranks
        self.definition, self.counts = config.definition, config.definition.generation.counts
        self.folder = galaxies.folder(config.definition.data, config.data_root)
        self.data_digest = store.read_manifest(self.folder).digest
        self.weights = given or weights.published(config)
        self.weights_digest = self.weights.digest
        self.decoded_together = DECODED_TOGETHER[ranks.device.type]
        self.times: Sequence[Times] = ()

    def drop_caches(self) -> None:
        """Drop the stamps from the file caches."""
        store.drop_caches(self.folder)

    def build(self) -> int:
        """The network with its weights; returns the number of parameters."""
        self.model = Generative(self.definition.model, self.definition.data)
        self.model.load_state_dict(self.weights.tensors)
        self.model.to(self.ranks.device).eval()
        asked = self.config.execution
        insist = asked.compile == "on"
        self._decode = Compiled(self._images, enabled=insist, insist=insist)
        self._eager = eager_sampler(self.model.flow)
        self._no_compiler = ""
        self._host_images = torch.empty(0)
        self._compute_as(asked)
        return sum(parameter.numel() for parameter in self.model.parameters())

    @torch.no_grad()
    def warm_up(self, images: int) -> None:
        """Settle how to compute, then generate at least ``images`` images in each number at a time,
        from noise of their own."""
        latents = self._eager(self._noise("settling", self.decoded_together))
        asked = self.config.execution
        if asked.precision == "auto" and self.weights_digest != weights.UNTRAINED:
            asked = self._faithful(asked, latents)

        def step(how: Execution) -> str:
            self._compute_as(how)
            self._decode(latents)  # of sampling C++ is the fastest way wherever there is a compiler
            return self._decode.failure or self._no_compiler

        self._compute_as(execution.autotune(asked, step, self.ranks))
        for count in self.counts:
            for repetition in range(-(-images // count)):
                self.decode(self._sample(self._noise("warm-up", count, repetition)))

    def implementation(self) -> Mapping[str, Any]:
        """What a reader asks for beside a time."""
        device = self.ranks.device
        return {
            "framework": f"torch {torch.__version__}",
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "ranks": self.ranks.world_size,
            "threads_per_rank": torch.get_num_threads(),
            "precision": str(self.precision).removeprefix("torch."),
            "weights": self.weights_digest[:12],
            "sampling": self.sampling_note,
            "decoding": f"{self._decode.note}, up to {self.decoded_together} images together",
            "execution": asdict(self.execution),
        }

    def sample(self, images: int, repetition: int) -> Tensor:
        """Noise of this repetition, keyed by the run's seed, to latents (images, 32).

        One sample in some ten thousand overflows in the flow: its latents are cut off, and its
        image counts as any other.
        """
        return within_reach(self._sample(self._noise("generated images", images, repetition)))

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Latents (n, 32) to images; the next call writes over them."""
        count, together = len(latents), min(len(latents), self.decoded_together)
        images = self._room_for(count)
        for first in range(0, count, together):
            part = latents[first : first + together]
            # The last part is filled up to the compiled shape; what was added is cut off again.
            padded = F.pad(part, (0, 0, 0, together - len(part)))
            decoded = self._decode(padded)[: len(part)]
            images[first : first + len(part)].copy_(decoded, non_blocking=True)
        return images

    def open_data(self) -> None:
        """Map the noise-free stamps; rows [0, train) are for training, the next ones held out."""
        sky = galaxies.load(self.folder)
        train = self.definition.train_samples
        assert len(sky.labels) == train + self.definition.evaluation_samples
        stamps = middle(sky.noise_free, self.definition.model["pixels"])
        self.training, self.held_out = stamps[:train], stamps[train:]

    @torch.no_grad()
    def evaluate(self, images: Tensor) -> dict[str, float]:
        """How they are distributed, whether they differ from each other and from the training
        images; see ``quality``."""
        self.judged = images[:MOST_SHOWN].clone()
        # Copies: torch wants memory that it might write to.
        real, training = (torch.from_numpy(part.copy()) for part in (self.held_out, self.training))
        return quality.metrics(images, real, training, self.definition.model, self.definition.data)

    def synchronize(self) -> None:
        """Wait for the device."""
        self.ranks.barrier()

    def keep_times(self, times: Sequence[Times]) -> None:
        """Keep the times for the report."""
        self.times = times

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Latencies and rates, and what they mean for CosmoDC2; see ``quality``."""
        on_progress(1, 1)
        return [quality.speed_table(self.times, self.definition.scale)]

    def pictures(self) -> "Figure":
        """Generated galaxies beside real ones; see ``pictures``."""
        from benchmarks.galaxy_generation import pictures  # astropy is slow to load

        sky = galaxies.parameters_of(self.definition.data)
        return pictures.panel(self.held_out[:MOST_SHOWN], self.judged.numpy(), sky)

    def _images(self, latents: Tensor) -> Tensor:
        with precision.autocast(self.precision, self.ranks.device):
            return self.model.decoder.images(latents)

    def _compute_as(self, how: Execution) -> None:
        """Compute as ``how`` says from now on. On CPUs compiling also means to sample in C++."""
        self.execution = how
        execution.use_threads(how)
        self.precision = precision.TYPES.get(how.precision, torch.float32)  # until it is settled
        self._decode.enabled = how.compile == "on"
        on_gpu = self.ranks.device.type == "cuda"
        self._sample, self.sampling_note = self._eager, "torch, a CUDA graph" if on_gpu else "torch"
        if how.compile == "on" and not on_gpu:
            try:
                self._sample, self.sampling_note = self._native, "c++"
            except NoCompilerError as error:
                self._no_compiler = str(error)
                if self.config.execution.compile == "on":
                    raise UserError(
                        f"compile=on, but the sampler cannot be compiled here: {error} "
                        "(g++ is needed; compile=off runs without)"
                    ) from error

    @cached_property
    def _native(self) -> Sampler:
        """Compiled once, in seconds. Raises NoCompilerError."""
        return native_sampler(self.model.flow)

    def _faithful(self, asked: Execution, latents: Tensor) -> Execution:
        """float32 in place of ``auto`` where bfloat16 would change what the images are like."""
        if precision.candidates(self.ranks.device) == ("fp32",):
            return asked
        measured = []
        for name in ("fp32", "bf16"):
            self.precision = precision.TYPES[name]
            measured.append(self._properties(self._images(latents)))
        exact, rounded = measured
        distances = properties.distances(rounded, exact, self.definition.data["bands"])
        name, distance = max(distances.items(), key=lambda item: item[1])
        if distance <= LARGEST_DISTANCE:
            return asked
        return asked.having("precision", "fp32", f"bf16 moves {name} by {distance:.2g}")

    def _properties(self, images: Tensor) -> np.ndarray:
        data = self.definition.data
        return torch_properties.measured(images, data["bands"], data["pixel_scale_arcsec"])

    def _noise(self, purpose: str, count: int, repetition: int = 0) -> Tensor:
        random = generator(self.config.seed, purpose, count, repetition)
        shape = (count, self.definition.model["latents"])
        noise = random.standard_normal(shape, dtype=np.float32)
        return torch.from_numpy(noise).to(self.ranks.device)

    def _room_for(self, count: int) -> Tensor:
        """Memory of the host for so many images, with the bands last as the decoder leaves them;
        the same at every call, so that nothing waits for new memory."""
        pixels, bands = self.definition.model["pixels"], len(self.definition.data["bands"])
        if len(self._host_images) < count:
            rows, pinned = max(count, *self.counts), self.ranks.device.type == "cuda"
            self._host_images = torch.empty(rows, pixels, pixels, bands, pin_memory=pinned)
        return self._host_images[:count].permute(0, 3, 1, 2)
