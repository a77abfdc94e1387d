"""What a benchmark that generates declares, in any framework.

Its task exports ``WORKLOAD``, a ``GenerationWorkload``, and imports neither the timed loop nor the
dataset; the session puts them together (``cepheid.reference.run.task.GenerationTask``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.report import Table

Latents = Any
Images = Any
"""Arrays of the framework. The loop only passes them on; their shapes are the generator's."""


@dataclass(frozen=True)
class Times:
    """Seconds of all repetitions of generating ``images`` images at a time, in their order."""

    images: int
    sampling_seconds: tuple[float, ...]
    decoding_seconds: tuple[float, ...]

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds of sampling and decoding together, for each repetition."""
        parts = zip(self.sampling_seconds, self.decoding_seconds, strict=True)
        return tuple(sampling + decoding for sampling, decoding in parts)


class ImageMaker(Protocol):
    """What makes images with one framework, and judges them."""

    weights_digest: str
    """SHA-256 of the file with the weights."""

    def build(self) -> int:
        """Read the weights, and return the number of parameters."""

    def warm_up(self, images: int) -> None:
        """Compile, and generate at least ``images`` images in every batch size that will be timed.

        The noise is different from that of every repetition.
        """

    def implementation(self) -> Mapping[str, Any]:
        """Return what a reader needs beside a time: framework, device, precision, ranks."""

    def sample(self, images: int, repetition: int) -> Latents:
        """Draw the noise of this repetition and carry it to the latents of ``images`` images.

        The noise differs between runs, numbers of images and repetitions.
        """

    def decode(self, latents: Latents) -> Images:
        """Return images in the memory of the host; they stay there until the next call."""

    def synchronize(self) -> None:
        """Wait for the device."""

    def evaluate(self, images: Images) -> dict[str, float]:
        """Return all metrics of images that were timed."""

    def project(self, images: Images) -> list[float]:
        """Return a number for each image, by which it can be told when made again (rule T24)."""


class JudgedImageMaker(ImageMaker, Protocol):
    """What a benchmark declares: it also opens the dataset, and shows what it made."""

    def read_data(self, source: Any, folder: Path) -> None:
        """Open the dataset in ``folder``, of whose kind ``source`` is the module."""

    def report(self, times: Sequence[Times]) -> Sequence[Table]:
        """Return the tables of the report, from the times of the run."""

    def pictures(self) -> Any:
        """Return a figure of what was generated."""


@dataclass(frozen=True)
class GenerationWorkload:
    """A benchmark that generates, all that a session sees of it.

    ``make_for_timing`` is for measurements of time alone; its weights may be untrained.
    """

    make: Callable[[RunConfig, Any], JudgedImageMaker]
    make_for_timing: Callable[[RunConfig, Any], JudgedImageMaker] | None = None

    def for_timing(self) -> "GenerationWorkload":
        """Return the workload for measurements of time alone."""
        return replace(self, make=self.make_for_timing or self.make)
