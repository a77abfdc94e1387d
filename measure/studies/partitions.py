"""What it brings that several ranks share each image: `cepheid measure partitions`.

All take turns on the same ranks, so that other work on the machine slows them alike.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine import options
from cepheid.measure.engine.noise import NO_DATA
from cepheid.measure.engine.options import Option
from cepheid.measure.engine.study import (
    REPORTED,
    Column,
    Measured,
    Request,
    Study,
    draw_figure,
)
from cepheid.measure.engine.turns import (
    MIB,
    Timing,
    configure_open,
    format_spread,
    make_task,
    time_in_turns,
)
from cepheid.reference.machine.placement import find_placement
from cepheid.reference.run.config import RunConfig
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.reference.torch.ranks.distributed import TorchRanks

DESCRIPTION = """\
Measure training steps whose ranks share each image (spatial_partitions) against one rank, and
against the same ranks with a part of the batch each (column `batch`), by size of the image.

The global batch is the same in all of them, and so is the mathematics: batch norms cover the global
batch. A step is forward, backward and the averaging of the gradients, on noise. All take turns.
Factors are the time of one rank over that of all ranks, of medians: above 1, more ranks are faster.
The factors in processor time leave out waiting for the other ranks, so they are what there is to
gain at best; other work on the machine changes them less. Brackets hold the middle half. MiB is
what a rank keeps of a forward pass for the backward pass: alone, with a part of the batch, and with
each partition.
"""
EXAMPLES = """\
examples:
  torchrun --standalone --nproc-per-node 2 -m cepheid.tools.measure partitions resnet50
  torchrun --standalone --nproc-per-node 4 -m cepheid.tools.measure partitions resnet50 \\
      --sizes 256,512 --output partitions.json --figure partitions.png

exit codes: 0 fine; 2 wrong use
"""
SIZES = (64, 128, 256, 512)
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

    def compare(self, label: str) -> str:
        """Return how many times as fast as one rank it is, with the ends of its middle half."""
        base, timing = self.wall[ALONE].median_seconds, self.wall[label]
        low, high = timing.quartiles_seconds
        return format_spread(base / timing.median_seconds, (base / high, base / low), ".2f")

    def compare_processor(self, label: str) -> float:
        """Return how many times less processor time it takes than one rank."""
        return self.processor[ALONE].median_seconds / self.processor[label].median_seconds


def prepare_config(request: Request) -> RunConfig:
    """Return the configuration of one rank. Raises UserError where ranks cannot share an image."""
    definition, asked = request.require_extras(), request.arguments
    ranks = find_placement().world_size
    batch = ranks if asked.batch is None else asked.batch
    settings = [f"global_batch_size={batch}", "compile=off", "precision=fp32"]
    if "model_bn_span" in definition.hyperparameters:
        settings.append("model_bn_span=0")
    config = configure_open(definition, overrides=[*settings, *asked.overrides])
    list_grids(config, ranks)
    return config


def list_grids(config: RunConfig, ranks: int) -> list[str]:
    """Return the settings that split an image over all ``ranks``; raise UserError without one."""
    choices = config.definition.execution.get(SETTING, ())
    grids = [text for text in choices if _count_parts(text) == ranks > 1]
    if not grids:
        known = sorted({_count_parts(text) for text in choices} - {1})
        start = f"start {' or '.join(map(str, known))} ranks with torchrun"
        raise UserError(
            f"{config.definition.name} cannot share an image over {ranks} ranks; "
            + (start if known else f"it has no execution setting {SETTING}")
        )
    return grids


def _count_parts(text: str) -> int:
    rows, _, columns = text.partition("x")
    return int(rows) * int(columns or 1)


def measure(request: Request, config: RunConfig) -> Measured:
    """Time each size on all ranks, in turns."""
    assert request.ranks is not None
    measured = []
    for size in request.arguments.sizes:
        measured.append(measure_size(config, request.ranks, size, request.arguments.rounds))
        request.observer.tell(f"{size} pixels: measured")
    notes = []
    for grid in list_grids(config, request.ranks.world_size):
        for by_processor, what in ((False, "wall time"), (True, "processor time")):
            least = find_break_even(measured, grid, by_processor)
            where = f"from {least} pixels on" if least else "at no size measured"
            notes.append(f"{grid} parts are faster than one rank in {what}: {where}")
    facts = {
        "benchmark": config.definition.name,
        "scale": config.definition.scale,
        "ranks": request.ranks.world_size,
        "global_batch_size": config.global_batch_size,
        "sizes": [asdict(size) for size in measured],
    }
    return Measured(measured, notes=notes, facts=facts)


def draw_factors(path: Path, request: Request, measured: Measured) -> None:
    """Draw how many times as fast as one rank each way is, by the size of the images."""
    definition, facts = request.definition, measured.facts
    pixels = [size.pixels for size in measured.rows]
    labels = [label for label in measured.rows[0].wall if label != ALONE]
    with draw_figure(path, columns=2) as (figure, (left, right)):
        for number, label in enumerate(labels):
            look: dict[str, Any] = {"label": label, "color": f"C{number}"}
            factors = [
                size.wall[ALONE].median_seconds / size.wall[label].median_seconds
                for size in measured.rows
            ]
            left.plot(pixels, factors, "o-", **look)
            of_processor = [size.compare_processor(label) for size in measured.rows]
            right.plot(pixels, of_processor, "o-", **look)
        for axes, what in ((left, "wall time"), (right, "processor time, without waiting")):
            axes.axhline(1, color=REPORTED, linewidth=0.8)
            axes.set_xscale("log", base=2)
            axes.set_ylim(bottom=0)
            axes.set(title=what, xlabel="pixels a side", ylabel="times as fast as one rank")
            axes.set_xticks(pixels, list(map(str, pixels)))
            axes.legend()
        title = f"{definition.name}, {definition.scale} scale: {facts['ranks']} ranks"
        figure.suptitle(f"{title} share {facts['global_batch_size']} images")


def measure_size(config: RunConfig, ranks: "TorchRanks", pixels: int, rounds: int) -> SizeTimings:
    """Time a step on images of ``pixels`` alone, with shared images and with a shared batch.

    A step is forward, backward and the averaging of the gradients; data are noise, and weights stay
    as they are. All ranks must call it.
    """
    model = MappingProxyType({**config.definition.model, "pixels": pixels})
    config = replace(config, definition=replace(config.definition, model=model))
    steps = {ALONE: _Step(config, type(ranks)(0, 1, ranks.device), ranks.is_first)}
    if config.global_batch_size % ranks.world_size == 0:
        steps[BATCH] = _Step(config, ranks)
    for grid in list_grids(config, ranks.world_size):
        own = config.execution.with_setting(SETTING, grid)
        steps[grid] = _Step(replace(config, execution=own), ranks)
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

    def __init__(self, config: RunConfig, ranks: "TorchRanks", is_busy: bool = True) -> None:
        self.task = make_task(config, ranks, is_warm=False, inputs=NO_DATA)
        self.task.model.train()
        self.batch, self.is_busy = self.task.draw_noise(self.task.batch_per_rank), is_busy

    def __call__(self) -> None:
        """Compute the gradients, average them and forget them."""
        if self.is_busy:
            self.task.compute_loss(*self.batch).backward()
            self.task.optimizer.zero_grad()

    def count_bytes(self) -> int:
        """Return what one more step keeps for its backward pass, besides the weights."""
        from cepheid.measure.engine.byte_counts import SavedBytes

        saved = SavedBytes.beside(self.task.model.parameters())
        with saved.count():
            self()
        return saved.most


def find_break_even(sizes: Sequence[SizeTimings], label: str, by_processor: bool) -> int | None:
    """Return the size from which on ``label`` is faster than one rank at all larger ones."""
    least = None
    for size in sorted(sizes, key=lambda size: -size.pixels):
        times = size.processor if by_processor else size.wall
        if times[label].median_seconds >= times[ALONE].median_seconds:
            break
        least = size.pixels
    return least


def list_columns(_: Request, measured: Measured) -> Sequence[Column]:
    """Return the columns: the time of one rank, and how many times as fast the others are."""
    labels = [label for label in measured.rows[0].wall if label != ALONE]
    return (
        Column("pixels", "pixels"),
        Column("one rank, s", lambda size: size.wall[ALONE], _describe_seconds),
        *(Column(label, partial(SizeTimings.compare, label=label)) for label in labels),
        *(
            Column(f"{label}, processor", partial(SizeTimings.compare_processor, label=label),
                   "{:.2f}")
            for label in labels
        ),
        Column("MiB", lambda size: ", ".join(
            f"{size.memory[label] / MIB:,.2f}" for label in size.wall
        )),
    )  # fmt: skip


def _describe_seconds(timing: Timing) -> str:
    return format_spread(timing.median_seconds, timing.quartiles_seconds, ".3f")


STUDY = Study(
    "partitions",
    prepare_config,
    measure,
    list_columns,
    draw_factors,
    is_timed=True,
    has_ranks=True,
    description=DESCRIPTION,
    examples=EXAMPLES,
    options=(
        *options.offer_benchmark(),
        options.offer_numbers(
            "--sizes N,…", "heights and widths of images, in pixels (default: 64,128,256,512)",
            "64,128", SIZES,
        ),
        Option("--batch N", "images in the global batch (default: one a rank)", int),
        options.offer_rounds(7),
        options.offer_settings("a setting of the reference, as for `cepheid run`"),
        *options.DEVICES,
        options.FIGURE,
        options.FILE,
    ),
)  # fmt: skip
