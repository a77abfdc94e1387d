"""Running the reference to learn something about it: what check-targets and rcp have in common."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rules.definition import Definition
from rules.evidence import Curve

if TYPE_CHECKING:
    from reference.measure.targets import TaskFactory
    from reference.run.config import RunConfig

HARDWARE = (
    "processor", "processor_cores_per_node", "accelerator", "accelerators_per_node",
    "operating_system",
)  # fmt: skip


@dataclass(frozen=True)
class Training:
    """One run to make: what is printed above it, and what it runs."""

    title: str
    variant: str
    create: "TaskFactory"
    config: "RunConfig"


def measured(
    chosen: Definition, trainings: Sequence[Training], data_root: Path
) -> Iterator[tuple[Training, Curve, Mapping[str, Any]]]:
    """Make the runs one after the other; yields each with its quality curve and on what it ran.

    Data are prepared first. Nothing is started where there is nothing to run.
    """
    if not trainings:
        return
    from rich.console import Console

    from reference.machine import system
    from reference.measure import targets
    from reference.torch.distributed import start_ranks
    from tools.progress import display_of, prepare_data

    console = Console(highlight=False, soft_wrap=True)
    prepare_data(chosen, data_root, console)
    with start_ranks() as ranks:
        description = system.describe("local", ranks)
        hardware = {key: description[key] for key in HARDWARE}
        for number, training in enumerate(trainings, 1):
            console.print(f"{training.title} (run {number} of {len(trainings)})")
            with display_of(chosen, console) as display:
                curve, implementation = targets.measure(
                    training.variant, training.create, training.config, ranks, display
                )
            yield training, curve, {**implementation, **hardware}
