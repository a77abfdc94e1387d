"""Keep the points of a measurement: one file for each size, which appears when it is done.

``configuration.json`` says what is measured and where; points of another configuration are refused.
So an interrupted measurement loses only the current size, and the same command continues it.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from cepheid.measure.engine.study import Column, Measured, Table, name_values
from cepheid.reference.session.observer import Observer
from cepheid.rules.errors import UserError, cannot_write
from cepheid.rules.host import ROOT, atomic_write, usable_processors

if TYPE_CHECKING:
    from cepheid.reference.run.config import RunConfig


class Placed(Protocol):
    """A measurement at one size, which a dataclass describes for JSON, or a job to make one."""

    @property
    def place(self) -> str:
        """The name of its file below the folder: its size, behind a folder where sizes repeat."""


P = TypeVar("P", bound=Placed)
J = TypeVar("J", bound=Placed)


@dataclass(frozen=True)
class PointFolder(Generic[P]):
    """The folder with the points, which are of one ``kind``, of one configuration."""

    path: Path
    kind: type[P]

    def load_points(self) -> tuple[P, ...]:
        """Return all recorded points by size. Raises UserError for a damaged file."""
        paths = [path for path in self.path.rglob("*.json") if path.stem.isdecimal()]
        order = lambda path: (int(path.stem), len(path.parent.name), path)  # noqa: E731
        return tuple(map(self._read, sorted(paths, key=order)))

    def list_missing(self, jobs: Sequence[J]) -> list[J]:
        """Return those of ``jobs`` of which nothing is recorded yet."""
        return [job for job in jobs if not self._locate(job).exists()]

    def keep(self, point: P) -> None:
        """Record a point."""
        self._write(self._locate(point), json.dumps(describe_point(point), indent=1) + "\n")

    def write_json(self, name: str, facts: Mapping[str, Any]) -> None:
        """Write a file of JSON. Raises UserError where that fails."""
        self._write(self.path / name, json.dumps(facts, indent=1, default=asdict) + "\n")

    def _locate(self, sized: Placed) -> Path:
        return self.path / f"{sized.place}.json"

    def _write(self, path: Path, text: str) -> None:
        try:
            path.parent.mkdir(exist_ok=True)
            atomic_write(path, text)
        except OSError as error:
            raise cannot_write(path, error) from error

    def _read(self, path: Path) -> P:
        try:
            return msgspec.json.decode(path.read_bytes(), type=self.kind)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: damaged ({error!r}); remove it to measure again") from error


def describe_point(point: Any) -> dict[str, Any]:
    """Return all fields of a point for JSON; what is not finite becomes None."""
    return _keep_finite(asdict(point))


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
    from cepheid.reference.session.result_folder import keep_or_compare  # needs the extra torch

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
    from cepheid.measure.engine.provenance import HARDWARE
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
    jobs: Sequence[J], folder: PointFolder[P], measure: Callable[[J], P], observer: Observer
) -> list[str]:
    """Measure the sizes that are not recorded yet; return those that could not be measured.

    ``measure`` raises UserError if a size cannot be measured. The texts of a job and of a point say
    what they are. Raises UserError where nothing is recorded in the end.
    """
    missing, failed = folder.list_missing(jobs), []
    if not missing:
        observer.tell(f"{folder.path}: all sizes are recorded, nothing to measure")
    for number, job in enumerate(missing, 1):
        label = f"{job} ({number} of {len(missing)})"
        observer.tell(f"{label}: building, compiling, warming up")
        try:
            point = measure(job)
        except UserError as error:
            observer.tell(f"{label}: not measured: {error}")
            failed.append(job.place)
            continue
        folder.keep(point)
        observer.tell(f"{label}: {point}")
    if len(failed) == len(jobs) and not folder.load_points():
        raise UserError(f"{folder.path}: nothing could be measured; the lines above say why")
    return failed


@dataclass(frozen=True)
class Shown:
    """What a study shows of its points: their columns, the rows made of them, and the figure."""

    columns: Sequence[Column]
    draw: Callable[[Path], None]
    title: str = ""
    notes: Sequence[str] = ()
    rows: Sequence[Any] | None = None  # the points, where it is None


def finish(
    name: str, folder: PointFolder[P], facts: Mapping[str, Any], shown: Shown,
    failed: Sequence[str] = (),
) -> Measured:  # fmt: skip
    """Write ``<name>.json`` with facts, table and points, and ``<name>.png``; return what is shown.

    ``failed`` are the sizes that could not be measured.
    """
    points = folder.load_points()
    table = [name_values(shown.columns, point) for point in points] if shown.rows is None else []
    kept = {**facts, "points": list(map(describe_point, points))}
    folder.write_json(f"{name}.json", {**kept, "table": table} if table else kept)
    shown.draw(folder.path / f"{name}.png")
    notes = [*shown.notes, *(f"written: {folder.path / name}.{end}" for end in ("json", "png"))]
    if failed:
        notes.append(f"not measured: {', '.join(failed)}; the lines above say why")
    rows = points if shown.rows is None else shown.rows
    return Measured(
        tables=[Table(shown.title, shown.columns, rows)], notes=notes, is_fine=not failed
    )
