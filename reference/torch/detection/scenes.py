"""What the benchmarks that find objects share: images with objects, and what a run says of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cepheid.reference.data.detection.average_precision import AveragePrecision
from cepheid.reference.data.detection.loader import Augmentation, Loader
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.images import load_given_weights
from cepheid.reference.torch.pieces import Pieces, cut
from cepheid.reference.torch.workload import Seat


@dataclass(frozen=True)
class Scenes:
    """The facts of a benchmark on images with objects; ``facts`` are those of its model."""

    config: RunConfig
    facts: Mapping[str, Any]
    pixels: int
    values: Any


class Pictures:
    """Images with their objects; threads that decode them wait for the first batch.

    ``make_targets`` takes the place of a batch's first sample in the training, and what the loader
    gives beside its images.
    """

    def __init__(
        self,
        shape: Scenes,
        seat: Seat,
        augmentation: Augmentation,
        make_targets: Callable[..., Tensor],
    ) -> None:
        self.seat, self.make_targets = seat, make_targets
        self.source, self.images = seat.source, seat.load()
        seed, workers, pins = shape.config.seed, seat.workers, seat.pins
        self.loader = Loader(self.images, augmentation, seed, seat.share, workers, pinned=pins)

    def take(self, samples: int, size: int) -> Pieces:
        """Return this rank's share of images and targets of the batch after ``samples``."""
        images, *others = self.loader.next_batch(samples)
        return cut(images, self.make_targets(self.seat.find_first(samples), *others), size)


def load_given(shape: Scenes, network: Any) -> str | None:
    """Load the weights from which the definition starts, if it has any; return their digest."""
    given = shape.facts.get("given_weights")
    if not given:
        return None
    path = shape.config.data_root / given["file"]
    return load_given_weights(network.backbone, path, given["digest"])


def refuse_missing_images(shape: Scenes, counts: Iterable[int]) -> None:
    """Raise AssertionError if the ranks, each of its count, did not evaluate each image once."""
    assert sum(counts) == shape.config.definition.evaluation_samples


def list_precisions(pictures: Pictures, reached: AveragePrecision) -> dict[str, Any]:
    """Return the average precision of each class and of each size, by name; None for none."""
    sizes = {size: getattr(reached, f"ap_{size}") for size in ("small", "medium", "large")}
    names = pictures.images.class_names
    return {**dict(zip(names, reached.by_class, strict=True)), **sizes}
