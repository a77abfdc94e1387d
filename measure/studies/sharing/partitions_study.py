"""What it brings that several ranks share each image: `cepheid measure partitions`."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine import options
from cepheid.measure.engine.study import Column, Help, Measured, Request, Study
from cepheid.reference.machine.placement import find_placement
from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.session.frameworks import find_create

if TYPE_CHECKING:
    from cepheid.measure.studies.sharing.partitions import SizeTimings

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
      --sizes 256,512

exit codes: 0 fine; 2 wrong use
"""
SIZES = (64, 128, 256, 512)
MIB = 1024**2


def prepare_config(request: Request) -> RunConfig:
    """Return the configuration of one rank. Raises UserError where ranks cannot share an image."""
    from cepheid.measure.studies.sharing.partitions import list_grids

    definition, asked = request.require_extras(), request.arguments
    ranks = find_placement().world_size
    batch = ranks if asked.batch is None else asked.batch
    settings = [f"global_batch_size={batch}", "compile=off", "precision=fp32"]
    if "model_bn_span" in definition.hyperparameters:
        settings.append("model_bn_span=0")
    overrides = [*settings, *asked.overrides]
    config = configure(definition, division="open", overrides=overrides, seed=1)
    list_grids(config, ranks)
    return config


def measure(request: Request, config: RunConfig) -> Measured:
    """Time each size on all ranks, in turns."""
    from cepheid.measure.studies.sharing.partitions import (
        find_break_even,
        list_grids,
        measure_size,
    )

    assert request.ranks is not None
    create = find_create(import_task(config.definition, "torch"))
    measured = []
    for size in request.arguments.sizes:
        measured.append(measure_size(create, config, request.ranks, size, request.arguments.rounds))
        request.observer.tell(f"{size} pixels: measured")
    notes = []
    for grid in list_grids(config, request.ranks.world_size):
        for by_processor, what in ((False, "wall time"), (True, "processor time")):
            least = find_break_even(measured, grid, by_processor)
            found = f"from {least} pixels on" if least else "at no size measured"
            notes.append(f"{grid} parts are faster than one rank in {what}: {found}")
    return Measured(measured, notes=notes)


def list_columns(_: Request, measured: Measured) -> Sequence[Column]:
    """Return the columns: the time of one rank, and how many times as fast the others are."""
    from cepheid.measure.studies.sharing.partitions import ALONE

    labels = [label for label in measured.rows[0].wall if label != ALONE]
    return (
        Column("pixels", lambda size: size.pixels),
        Column("one rank, s", lambda size: size.wall[ALONE], _describe_seconds),
        *(Column(label, _compare(ALONE, label), _describe_factor) for label in labels),
        *(
            Column(f"{label}, processor", _compare_processor(ALONE, label), "{:.2f}".format)
            for label in labels
        ),
        Column("MiB", lambda size: [size.memory[label] / MIB for label in size.wall], _join),
    )


def _describe_seconds(timing: Any) -> str:
    first, third = timing.quartiles_seconds
    return f"{timing.median_seconds:.3f} ({first:.3f} to {third:.3f})"


def _compare(alone: str, label: str) -> "Callable[[SizeTimings], list[float]]":
    """Return what gives the factor of a label at a size, and the ends of its middle half."""

    def divide(size: "SizeTimings") -> list[float]:
        base, timing = size.wall[alone].median_seconds, size.wall[label]
        seconds = (timing.median_seconds, *reversed(timing.quartiles_seconds))
        return [base / each for each in seconds]

    return divide


def _describe_factor(factors: Sequence[float]) -> str:
    factor, low, high = factors
    return f"{factor:.2f} ({low:.2f} to {high:.2f})"


def _compare_processor(alone: str, label: str) -> "Callable[[SizeTimings], float]":
    return lambda size: size.processor[alone].median_seconds / size.processor[label].median_seconds


def _join(values: Sequence[float]) -> str:
    return ", ".join(f"{value:,.2f}" for value in values)


STUDY = Study(
    name="partitions",
    help=Help(DESCRIPTION, EXAMPLES),
    options=(
        *options.offer_benchmark(),
        options.offer_numbers(
            "--sizes",
            {"default": SIZES, "metavar": "N,…",
             "help": "heights and widths of images, in pixels (default: 64,128,256,512)"},
            example="64,128",
        ),
        options.Option(
            "--batch",
            {"type": int, "metavar": "N",
             "help": "images in the global batch (default: one a rank)"},
        ),
        options.offer_rounds(7),
        options.offer_settings("a setting of the reference, as for `cepheid run`"),
    ),
    arms=prepare_config,
    measure=measure,
    columns=list_columns,
    is_timed=True,
    has_ranks=True,
)  # fmt: skip
