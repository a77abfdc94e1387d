"""Prepare a measurement of scaling, keep its points, and write them together."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine.recorded_points import (
    PointFolder,
    describe_machine,
    keep_configuration,
)
from cepheid.measure.studies.scaling.points import Point, name_row
from cepheid.measure.studies.scaling.tasks import Job
from cepheid.reference.session.observer import Observer, prepare_data
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.reference.torch.ranks.distributed import TorchRanks

FILE = "scaling.json"
COUNT = "accelerators_per_node"  # grows with the ranks of a point


def prepare_scaling(job: Job, ranks: "TorchRanks", observer: Observer) -> dict[str, Any]:
    """Prepare the data, if any are read, and return what all points have in common.

    Raises UserError for settings that the benchmark does not have.
    """
    from cepheid.reference.machine import system

    config = job.configure()
    if "real" in job.inputs:
        prepare_data(config.definition, config.data_root, observer)
    facts = describe_machine(config, job.overrides, system.describe("local", ranks))
    hardware = {key: value for key, value in facts["system"].items() if key != COUNT}
    return {
        **facts,
        "system": hardware,
        "mode": job.mode,
        "inputs": list(job.inputs),
        "batch_size": job.batch_size,
        "rounds": job.rounds,
        "turn_seconds": job.turn_seconds,
        "processors_per_rank": job.processors_per_rank,
    }


def open_folder(path: Path, configuration: Mapping[str, Any]) -> PointFolder[Point]:
    """Return the folder for a configuration, and make it if it is missing.

    Raises UserError if it has points of another configuration, or cannot be written.
    """
    keep_configuration(path, configuration, "measurement of scaling")
    return PointFolder(path, Point.from_json)


def write_scaling(folder: PointFolder[Point], configuration: Mapping[str, Any]) -> None:
    """Write ``scaling.json`` with all points and the numbers that follow from them."""
    points = folder.load_points()
    content = {
        "configuration": dict(configuration),
        "table": [name_row(point) for point in points],
        "points": [point.as_json() for point in points],
    }
    folder.write(FILE, json.dumps(content, indent=1) + "\n")


def read_scaling(path: Path) -> tuple[Mapping[str, Any], tuple[Point, ...]]:
    """Return configuration and points of a ``scaling.json``, or of the folder that has one.

    Raises UserError for any other file.
    """
    if path.is_dir():
        path = path / FILE
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        points = tuple(map(Point.from_json, facts["points"]))
        configuration: Mapping[str, Any] = facts["configuration"]
        if not points or not {"benchmark", "scale", "mode"} <= configuration.keys():
            raise ValueError("no points")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); `cepheid measure scaling` writes it"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: not a scaling.json of `cepheid measure scaling` ({error!r})"
        ) from error
    return configuration, points
