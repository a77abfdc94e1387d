"""galaxy_generation in PyTorch: noise to latents, latents to images, and how good they are."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cepheid.benchmarks.galaxy_generation import weights, weights_file
from cepheid.benchmarks.galaxy_generation.framework_free import GalaxyMaker
from cepheid.benchmarks.galaxy_generation.model import Generative
from cepheid.benchmarks.galaxy_vae.model import cut_off_overflow, measure_properties
from cepheid.reference.galaxies import properties
from cepheid.reference.run.autotune import pick_fastest
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.run.generation import GenerationWorkload
from cepheid.reference.torch import execution
from cepheid.reference.torch.execution import Compiled, DeviceRanks
from cepheid.reference.torch.flow.sampling import (
    NoCompilerError,
    Sampler,
    make_eager_sampler,
    make_native_sampler,
)
from cepheid.rules.errors import UserError

# bfloat16 is used only if the images' properties are distributed like those in float32, within this
# ``generated_distance``, which then is worse by that much at most.
LARGEST_DISTANCE = 0.03
# The execution setting for how many parts of the images are decoded at once, each on one thread:
# threads of one part wait for each other at every layer, those of different parts at the end only.
AT_ONCE = "parts_at_once"
PARTS_COMPARED = 4  # by each thread, where the ways are compared


@dataclass(frozen=True)
class Settings:
    """The execution setting that only generation has; earlier results do not have it."""

    parts_at_once: str = "1"


class GalaxyGeneration(GalaxyMaker):
    """Galaxies from noise, by the flow and the decoder of galaxy_vae."""

    ranks: DeviceRanks

    def __init__(
        self, config: RunConfig, ranks: DeviceRanks, given: weights.Weights | None = None
    ) -> None:
        self.weights = given or weights.read_published(config)
        super().__init__(config, ranks, self.weights.digest)
        self.device = execution.find_device_for(config.execution, ranks)
        self.decoded_together = self.device.images_together
        self._is_shared = True  # whether all ranks make the images of this repetition
        self._usual_threads = 1
        if ranks.device.type == "cpu":
            self._usual_threads = max(1, torch.get_num_threads() // execution.count_sharers(ranks))

    def build(self) -> int:
        """Make the network with its weights; return the number of parameters."""
        self.model = Generative(self.definition.model, self.definition.data)
        self.model.load_state_dict(self.weights.tensors)
        self.model.to(self.ranks.device).eval()
        requested = self.config.execution
        insist = requested.compile == "on"
        self.compiled_decode = Compiled(self.decode_images, enabled=insist, insist=insist)
        self._eager = make_eager_sampler(self.model.flow)
        self._no_compiler = ""
        self._host_images = torch.empty(0)
        self.use_execution(requested)
        return sum(parameter.numel() for parameter in self.model.parameters())

    @torch.no_grad()
    def warm_up(self, images: int) -> None:
        """Choose the execution settings, then generate at least ``images`` at each batch size.

        The noise is that of no repetition.
        """
        # As many as are decoded together, on each rank.
        noise = self.draw_noise("settling", self.decoded_together * self.ranks.world_size)
        latents = self._eager(noise)
        requested = self.config.execution
        if requested.precision == "auto" and self.weights_digest != weights_file.UNTRAINED:
            requested = self.ranks.broadcast(self._check_bfloat16(requested, latents))

        def step(settings: Execution) -> str:
            self.use_execution(settings)
            self.compiled_decode(latents)  # sampling is not compared: C++ is always the fastest way
            return self.compiled_decode.failure or self._no_compiler

        self.use_execution(execution.autotune(requested, step, self.ranks))
        self._choose_parts_at_once(latents)
        for count in self.counts:
            for repetition in range(-(-images // count)):
                self.decode(self._carry(self.draw_noise("warm-up", count, repetition)))

    def implementation(self) -> Mapping[str, Any]:
        """Return framework, device and execution, for readers of the log."""
        decoding = self.compiled_decode.note
        return {
            "framework": f"torch {torch.__version__}",
            "device": self.device.name,
            "ranks": self.ranks.world_size,
            "threads_per_rank": max(torch.get_num_threads(), self.parts_at_once),
            "precision": execution.name_precision(self.execution),
            **self.device.describe_products(),
            "weights": self.weights_digest[:12],
            "sampling": self.sampling_note,
            "decoding": f"{decoding}, up to {self.decoded_together} images together"
            + (f" on each of {self.parts_at_once} threads" if self.parts_at_once > 1 else ""),
            "execution": asdict(self.execution),
        }

    def sample(self, images: int, repetition: int) -> Tensor:
        """Draw the noise of this repetition and return this rank's latents, (rows, 32).

        The noise depends on the run's seed. One sample in some ten thousand overflows in the flow;
        its latents are cut off, and its image counts as any other.
        """
        self._is_shared = images > 1
        return cut_off_overflow(
            self._carry(self.draw_noise("generated images", images, repetition))
        )

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Return the images of latents, (n, 32); the next call overwrites them."""
        count, together = len(latents), max(1, min(len(latents), self.decoded_together))
        images = self.reserve_images(count)

        @torch.no_grad()
        def decode_part(first: int) -> None:
            part = latents[first : first + together]
            # The last part is padded to the compiled shape; the padding is cut off again.
            padded = F.pad(part, (0, 0, 0, together - len(part)))
            decoded = self.compiled_decode(padded)[: len(part)]
            images[first : first + len(part)].copy_(decoded, non_blocking=True)

        firsts = range(0, count, together)
        is_shared = self.parts_at_once > 1 and len(firsts) > 1
        for _ in (self._threads.map if is_shared else map)(decode_part, firsts):
            pass
        return images

    def synchronize(self) -> None:
        """Wait for the devices that make the images of this repetition."""
        if self._is_shared:
            self.ranks.barrier()
        else:
            self.device.synchronize()

    def decode_images(self, latents: Tensor) -> Tensor:
        """Return the images of latents on their device, (n, bands, pixels, pixels)."""
        with self.device.autocast(self.precision):
            return self.model.decoder.make_images(latents)

    def use_execution(self, settings: Execution) -> None:
        """Compute with these execution settings from now on; on CPUs compile=on samples in C++."""
        self.execution = settings
        self.precision = execution.use_settings(settings, self.device)
        self.compiled_decode.enabled = settings.compile == "on"
        self._sample, self.sampling_note = self._eager, "torch"
        if settings.compile == "on" and not self.device.is_accelerator:
            try:
                self._sample, self.sampling_note = self.native_sampler, "c++"
            except NoCompilerError as error:
                self._no_compiler = str(error)
                if self.config.execution.compile == "on":
                    raise UserError(
                        f"compile=on, but the sampler cannot be compiled here: {error} "
                        "(g++ is needed; compile=off runs without)"
                    ) from error

    @property
    def parts_at_once(self) -> int:
        """How many parts of the images are decoded at once, each on one thread."""
        choice = self.execution.read(Settings).parts_at_once
        return 1 if choice == "auto" else int(choice)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        """As many threads, each of which computes alone: torch counts threads for each of them."""
        return ThreadPoolExecutor(self.parts_at_once, "decoding", lambda: torch.set_num_threads(1))

    def _choose_parts_at_once(self, latents: Tensor) -> None:
        """Compare decoding one part after the other with a part on each thread, unless asked.

        Beside other work the former leaves threads out (``execution.autotune``), and the latter
        need not: a thread that waits for a core delays no other.
        """
        if self.execution.read(Settings).parts_at_once != "auto":
            return
        asked = self.config.execution.threads
        is_open = asked == "auto" or self.ranks.device.type != "cpu"
        most = self._usual_threads if is_open else int(asked)
        candidates = ("1",) if most == 1 else (str(most), "1")
        many = latents.repeat(PARTS_COMPARED * most, 1)

        def step(settings: Execution) -> str:
            self.use_execution(settings)
            self.decode(many)
            return ""

        self.use_execution(pick_fastest(self.execution, AT_ONCE, candidates, step, self.ranks))

    @cached_property
    def native_sampler(self) -> Sampler:
        """The sampler in C++, compiled once, in seconds; raises NoCompilerError."""
        return make_native_sampler(self.model.flow)

    def _check_bfloat16(self, requested: Execution, latents: Tensor) -> Execution:
        """Set the precision to float32 where bfloat16 would change the images' properties."""
        if tuple(self.device.list_precisions()) == ("fp32",):
            return requested
        measured = []
        for name in ("fp32", "bf16"):
            self.precision = execution.PRECISIONS[name]
            measured.append(self._measure(self.decode_images(latents)))
        exact, rounded = measured
        distances = properties.compute_distances(rounded, exact, self.definition.data["bands"])
        name, distance = max(distances.items(), key=lambda item: item[1])
        if distance <= LARGEST_DISTANCE:
            return requested
        return requested.with_setting("precision", "fp32", f"bf16 moves {name} by {distance:.2g}")

    def _measure(self, images: Tensor) -> np.ndarray:
        data = self.definition.data
        return measure_properties(images, data["bands"], data["pixel_scale_arcsec"])

    def draw_noise(self, purpose: str, count: int, repetition: int = 0) -> Tensor:
        """Return this rank's noise for ``count`` latent vectors, (rows, latents), on its device."""
        noise = self.draw_normal(purpose, count, repetition)
        return self.device.to_device(torch.from_numpy(noise))

    def _carry(self, noise: Tensor) -> Tensor:
        """Return the latents of noise, (rows, latents); a rank may have no rows."""
        return self._sample(noise) if len(noise) else noise

    def reserve_images(self, count: int) -> Tensor:
        """Return host memory for ``count`` images, (count, bands, pixels, pixels).

        Bands are last in memory, as the decoder leaves them. It is the same memory at every call,
        so that no call waits for an allocation.
        """
        pixels, bands = self.definition.model["pixels"], len(self.definition.data["bands"])
        if self._host_images.ndim == 1 or len(self._host_images) < count:
            most = self.share_rows(max(self.counts))
            rows = max(count, most.stop - most.start)
            self._host_images = self.device.empty_pinned(rows, pixels, pixels, bands)
        return self._host_images[:count].permute(0, 3, 1, 2)


def make_for_timing(config: RunConfig, ranks: DeviceRanks) -> GalaxyGeneration:
    """Return what generates where only time matters; its weights may be untrained."""
    return GalaxyGeneration(config, ranks, weights.read_or_make(config))


WORKLOAD = GenerationWorkload(GalaxyGeneration, make_for_timing)
