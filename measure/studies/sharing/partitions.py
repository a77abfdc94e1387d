"""Time training steps whose ranks share each image, against ranks with images of their own.

All take turns on the same ranks, so that other work on the machine slows them alike.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from cepheid.measure.engine.turns import Timing, time_in_turns
from cepheid.measure.studies.sharing.shared_models import SavedBytes
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules.errors import UserError

SETTING = "spatial_partitions"
ALONE, BATCH = "one rank", "batch"  # the labels beside those of grids


@dataclass(frozen=True)
class SizeTimings:
    """The step on images of ``pixels``, by label: wall time, processor time and memory of a rank.

    They are those of the rank that takes most. The processor time leaves out waiting. The memory
    is what the forward pass keeps for the backward pass, in bytes, besides the weights.
    """

    pixels: int
    wall: Mapping[str, Timing]
    processor: Mapping[str, Timing]
    memory: Mapping[str, int] = field(default_factory=dict)


def list_grids(config: RunConfig, ranks: int) -> list[str]:
    """Return the settings that split an image over all ``ranks``; raise UserError without one."""
    choices = config.definition.execution.get(SETTING, ())
    grids = [text for text in choices if _count_parts(text) == ranks > 1]
    if not grids:
        known = sorted({_count_parts(text) for text in choices} - {1})
        raise UserError(
            f"{config.definition.name} cannot share an image over {ranks} ranks; "
            + (
                f"start {' or '.join(map(str, known))} ranks with torchrun"
                if known
                else f"it has no execution setting {SETTING}"
            )
        )
    return grids


def _count_parts(text: str) -> int:
    rows, _, columns = text.partition("x")
    return int(rows) * int(columns or 1)


def measure_size(
    create: Callable[[RunConfig, TorchRanks], Any],
    config: RunConfig,
    ranks: TorchRanks,
    pixels: int,
    rounds: int,
) -> SizeTimings:
    """Time a step on images of ``pixels`` alone, with shared images and with a shared batch.

    A step is forward, backward and the averaging of the gradients; data are noise, and weights stay
    as they are. All ranks must call it.
    """
    model = MappingProxyType({**config.definition.model, "pixels": pixels})
    config = replace(config, definition=replace(config.definition, model=model))
    steps = {ALONE: _Step(create, config, TorchRanks(0, 1, ranks.device), ranks.is_first)}
    if config.global_batch_size % ranks.world_size == 0:
        steps[BATCH] = _Step(create, config, ranks)
    for grid in list_grids(config, ranks.world_size):
        own = config.execution.with_setting(SETTING, grid)
        steps[grid] = _Step(create, replace(config, execution=own), ranks)
    processor: dict[str, list[float]] = {label: [] for label in steps}

    def time_step(label: str) -> float:
        ranks.barrier()
        start, processor_start = time.perf_counter(), time.process_time()
        steps[label]()
        own = time.process_time() - processor_start
        ranks.barrier()
        elapsed = time.perf_counter() - start
        processor[label].append(max(ranks.all_gather_object(own)))
        return elapsed

    timings = time_in_turns(rounds, {label: partial(time_step, label) for label in steps})
    return SizeTimings(
        pixels,
        {timing.label: timing for timing in timings},
        {label: Timing(label, tuple(values[1:])) for label, values in processor.items()},
        {label: max(ranks.all_gather_object(step.count_bytes())) for label, step in steps.items()},
    )


class _Step:
    """A step on noise; on ranks that are not busy it does nothing."""

    def __init__(
        self,
        create: Callable[[RunConfig, TorchRanks], Any],
        config: RunConfig,
        ranks: TorchRanks,
        is_busy: bool = True,
    ) -> None:
        self.task = create(config, ranks)
        self.task.build()
        self.task.model.train()
        self.batch, self.is_busy = self.task.draw_noise(self.task.batch_per_rank), is_busy

    def __call__(self) -> None:
        """Compute the gradients, average them and forget them."""
        if self.is_busy:
            self.task.compute_loss(*self.batch).backward()
            self.task.optimizer.zero_grad()

    def count_bytes(self) -> int:
        """Return what one more step keeps for its backward pass, besides the weights."""
        saved = SavedBytes({parameter.data_ptr() for parameter in self.task.model.parameters()})
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
            self()
        return saved.most


def find_break_even(sizes: Sequence[SizeTimings], label: str, by_processor: bool) -> int | None:
    """Return the size from which on ``label`` is faster than one rank at all larger ones."""
    found = None
    for size in sorted(sizes, key=lambda size: -size.pixels):
        times = size.processor if by_processor else size.wall
        if times[label].median_seconds >= times[ALONE].median_seconds:
            break
        found = size.pixels
    return found
