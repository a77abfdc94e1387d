"""Keep the points of a measurement: one file for each size, which appears when it is done.

``configuration.json`` says what is measured and where; points of another configuration are refused.
So an interrupted measurement loses only the current size, and the same command continues it.
"""

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from cepheid.reference.session.observer import Observer
from cepheid.reference.session.shared_facts import keep_or_compare
from cepheid.rules.errors import UserError, cannot_write
from cepheid.rules.host import ROOT, atomic_write, usable_processors

if TYPE_CHECKING:
    from cepheid.reference.run.config import RunConfig


class Sized(Protocol):
    """A measurement at one size: a dataclass that JSON can hold."""

    @property
    def size(self) -> int:
        """The batch size, the number of images or of ranks."""


class SizedJob(Sized, Protocol):
    """A size to measure."""

    @property
    def label(self) -> str:
        """The size in words."""


P = TypeVar("P", bound=Sized)
J = TypeVar("J", bound=SizedJob)


@dataclass(frozen=True)
class PointFolder(Generic[P]):
    """The folder with the points, which are of one ``kind``, of one configuration."""

    path: Path
    kind: type[P]

    def load_points(self) -> tuple[P, ...]:
        """Return all recorded points by size. Raises UserError for a damaged file."""
        paths = [path for path in self.path.glob("*.json") if path.stem.isdecimal()]
        return tuple(sorted(map(self._read, paths), key=lambda point: point.size))

    def list_missing(self, sizes: Sequence[int]) -> list[int]:
        """Return those of ``sizes`` that are not recorded yet."""
        return [size for size in sizes if not (self.path / f"{size}.json").exists()]

    def keep(self, point: P) -> None:
        """Record a point."""
        self.write_json(f"{point.size}.json", describe_point(point))

    def write_json(self, name: str, facts: Mapping[str, Any]) -> None:
        """Write a file of JSON. Raises UserError where that fails."""
        self.write(name, json.dumps(facts, indent=1) + "\n")

    def write_csv(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a table for spreadsheets, with the columns of the first row."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        self.write(name, text.getvalue())

    def write(self, name: str, text: str) -> None:
        """Write a file. Raises UserError where that fails."""
        try:
            atomic_write(self.path / name, text)
        except OSError as error:
            raise cannot_write(self.path / name, error) from error

    def _read(self, path: Path) -> P:
        try:
            return msgspec.json.decode(path.read_bytes(), type=self.kind)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: damaged ({error!r}); remove it to measure again") from error


def describe_point(point: Any) -> dict[str, Any]:
    """Return all fields of a point for JSON; what is not finite becomes None."""
    facts: dict[str, Any] = _keep_finite(asdict(point))
    return facts


def _keep_finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _keep_finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_points(
    path: Path, file: str, kind: type[P], study: str
) -> tuple[dict[str, Any], tuple[P, ...]]:
    """Return the facts and points of a ``file`` of a study, or of the folder that has it.

    Raises UserError for any other file.
    """
    if path.is_dir():
        path = path / file
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        points = msgspec.convert(facts["points"], tuple[kind, ...])  # type: ignore[valid-type]
        if not points or not {"benchmark", "scale"} <= facts["configuration"].keys():
            raise ValueError("no points")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); `cepheid measure {study}` writes it"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a {file} of `cepheid measure {study}` ({error!r})") from error
    return facts, points


def open_folder(
    path: Path, configuration: Mapping[str, Any], kind: type[P], what: str
) -> PointFolder[P]:
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
    return PointFolder(path, kind)


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
    for number, job in enumerate((job for job in jobs if job.size in missing), 1):
        label = f"{job.label} ({number} of {len(missing)})"
        observer.tell(f"{label}: building, compiling, warming up")
        try:
            point = measure(job)
        except UserError as error:
            observer.tell(f"{label}: not measured: {error}")
            failed.append(job.size)
            continue
        folder.keep(point)
        observer.tell(f"{label}: {describe(point)}")
    return failed


def tell_written(folder: Path, files: Sequence[str], failed: Sequence[int]) -> list[str]:
    """Return a line for each file, and one about the sizes that could not be measured, if any."""
    notes = [f"written: {folder / name}" for name in files]
    if failed:
        sizes = ", ".join(map(str, failed))
        notes.append(f"not measured: {sizes}; the lines above say why")
    return notes
