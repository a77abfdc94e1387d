"""Keep the points of a measurement: one file for each size, which appears when it is done.

``configuration.json`` says what is measured and where; points of another configuration are refused.
So an interrupted measurement loses only the current size, and the same command continues it.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from cepheid.reference.session.observer import Observer
from cepheid.reference.session.shared_facts import keep_or_compare
from cepheid.rules.errors import UserError, cannot_write
from cepheid.rules.host import atomic_write, usable_processors
from cepheid.rules.installation import ROOT

if TYPE_CHECKING:
    from cepheid.reference.run.config import RunConfig


class SizedPoint(Protocol):
    """A measurement at one size."""

    @property
    def size(self) -> int:
        """The batch size, the number of images or of ranks."""

    def as_json(self) -> dict[str, Any]:
        """Return all fields."""


class SizedJob(Protocol):
    """A size to measure."""

    @property
    def size(self) -> int:
        """The size of the point."""

    @property
    def label(self) -> str:
        """The size in words."""


P = TypeVar("P", bound=SizedPoint)
J = TypeVar("J", bound=SizedJob)


@dataclass(frozen=True)
class PointFolder(Generic[P]):
    """The folder with the points of one configuration; ``parse`` reads what ``as_json`` wrote."""

    path: Path
    parse: Callable[[Mapping[str, Any]], P]

    def point_path(self, size: int) -> Path:
        """Return the file of one size."""
        return self.path / f"{size}.json"

    def load_points(self) -> tuple[P, ...]:
        """Return all recorded points by size. Raises UserError for a damaged file."""
        paths = [path for path in self.path.glob("*.json") if path.stem.isdecimal()]
        return tuple(sorted(map(self._read, paths), key=lambda point: point.size))

    def list_missing(self, sizes: Sequence[int]) -> list[int]:
        """Return those of ``sizes`` that are not recorded yet."""
        return [size for size in sizes if not self.point_path(size).exists()]

    def keep(self, point: P) -> None:
        """Record a point."""
        self.write(f"{point.size}.json", json.dumps(point.as_json(), indent=1) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a file. Raises UserError where that fails."""
        try:
            atomic_write(self.path / name, text)
        except OSError as error:
            raise cannot_write(self.path / name, error) from error

    def _read(self, path: Path) -> P:
        try:
            return self.parse(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: damaged ({error!r}); remove it to measure again") from error


def keep_configuration(path: Path, configuration: Mapping[str, Any], what: str) -> None:
    """Make the folder of a measurement and write its configuration, or compare it.

    Raises UserError if it has points of another configuration, or cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    why = f"All sizes of a {what} must be measured in the same way"
    # Of another benchmark or scale all else differs, too, and would hide what is wrong.
    for compared in (("benchmark", "scale"), tuple(configuration)):
        keep_or_compare(
            path / "configuration.json", dict(configuration), "configuration", compared, why
        )


def describe_machine(
    config: "RunConfig", overrides: Sequence[str], description: Mapping[str, Any]
) -> dict[str, Any]:
    """Return definition, code, settings and hardware, which all points have in common."""
    from cepheid.measure.engine.trainings import HARDWARE
    from cepheid.reference.session.code_digest import digest_code

    definition, threads = config.definition, config.execution.threads
    if threads == "auto":
        threads = os.environ.get("OMP_NUM_THREADS", str(usable_processors()))
    return {
        "benchmark": definition.name,
        "scale": definition.scale,
        "overrides": sorted(overrides),
        "definition_digest": definition.digest,
        "code_digest": digest_code(ROOT, definition.name),
        "parameters": definition.model["parameters"],
        "system": {key: description[key] for key in (*HARDWARE, "framework")},
        "threads": int(threads),
    }


def name_machine(
    configuration: Mapping[str, Any], implementations: Iterable[Mapping[str, Any]] = ()
) -> str:
    """Return the accelerator, or the processor and the number of threads.

    These are the threads that ``implementations`` name, where they do: beside other work a process
    takes fewer than the configuration has.
    """
    system = configuration["system"]
    if system["accelerator"]:
        return str(system["accelerator"])
    taken = [
        int(each["threads_per_rank"]) for each in implementations if "threads_per_rank" in each
    ]
    taken = taken or [configuration["threads"]]
    fewest, most = min(taken), max(taken)
    threads = str(most) if fewest == most else f"{fewest} to {most}"
    return f"{system['processor']}, {threads} thread{'s' if most > 1 else ''}"


def measure_missing(
    jobs: Sequence[J],
    folder: PointFolder[P],
    measure: Callable[[J], P],
    observer: Observer,
    describe: Callable[[P], str],
) -> list[int]:
    """Measure the sizes that are not recorded yet; return those that could not be measured.

    ``measure`` raises UserError if a size cannot be measured.
    """
    missing = folder.list_missing([job.size for job in jobs])
    if not missing:
        observer.tell(f"{folder.path}: all sizes are recorded, nothing to measure")
    failed = []
    for number, size in enumerate(missing, 1):
        job = next(job for job in jobs if job.size == size)
        label = f"{job.label} ({number} of {len(missing)})"
        observer.tell(f"{label}: building, compiling, warming up")
        try:
            point = measure(job)
        except UserError as error:
            observer.tell(f"{label}: not measured: {error}")
            failed.append(size)
            continue
        folder.keep(point)
        observer.tell(f"{label}: {describe(point)}")
    return failed


def tell_failed(failed: Sequence[int]) -> list[str]:
    """Return a line about the sizes that could not be measured, if there are any."""
    if not failed:
        return []
    return [f"not measured: {', '.join(map(str, failed))}; the lines above say why"]
