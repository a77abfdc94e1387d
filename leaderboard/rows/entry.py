"""What the site shows of a result: its row, its runs, its picture and the code that made it."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cepheid.compliance.finding import escape
from cepheid.compliance.judge.judgement import JudgedResult
from cepheid.compliance.read.attached import PNG
from cepheid.compliance.read.log.course import Course
from cepheid.compliance.read.summary import RunSummary
from cepheid.compliance.score.comparison import Level
from cepheid.compliance.score.convergence import Convergence
from cepheid.compliance.score.trimmed import trim
from cepheid.leaderboard.rows import Row, make_row, place_in_table
from cepheid.rules.definition import Definition, Runs

PICTURE_BYTES_MAX = 2**20


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the site shows it. ``counts`` is True where the score is a mean over it."""

    summary: RunSummary
    course: Course
    counts: bool


@dataclass(frozen=True)
class Entry:
    """One result. ``id`` is its permalink: submitter, system, benchmark, scale and division.

    ``twin`` counts results of the same name from 2 on, in the order of their folders.
    """

    id: str
    row: Row
    definition: Definition | None
    runs: tuple[Run, ...]
    convergence: Convergence | None
    availability: str
    batch_size: int | None
    twin: int = 1
    picture: Path | None = None
    code: Path | None = None
    system: Mapping[str, object] = field(default_factory=dict)

    @property
    def level(self) -> Level | None:
        """What the result is compared by, None without a score."""
        return self.row.level

    @property
    def page(self) -> str:
        """The file of its page in the site."""
        return f"results/{self.id}.html"

    @property
    def system_id(self) -> str:
        """Submitter and system."""
        return "/".join(self.id.split("/")[:2])

    @property
    def system_page(self) -> str:
        """The file of its system's page."""
        return f"systems/{self.system_id}.html"

    @property
    def tab(self) -> str:
        """The table of the round that it belongs to: scale and division."""
        return f"{make_slug(self.row.names.scale or 'all')}-{make_slug(self.row.names.division)}"

    @property
    def benchmark_page(self) -> str:
        """The file of its benchmark's page."""
        name = "-".join(
            filter(
                None, (make_slug(self.row.names.benchmark), make_slug(self.row.names.scale or ""))
            )
        )
        return f"benchmarks/{name}.html"

    @property
    def devices(self) -> int:
        """Accelerators, or nodes where there are none."""
        return self.row.hardware.accelerators or self.row.hardware.nodes or 1

    @property
    def is_known(self) -> bool:
        """True where the round has such a benchmark."""
        return self.definition is not None or self.row.judged.benchmark is not None


def make_slug(name: str) -> str:
    """Turn ``name`` into a part of file names and addresses; no other name gives the same."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:64]
    if plain == name and not plain.startswith("."):
        return plain
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain.lstrip('.-')}-{digest}" if name else ""


def list_entries(results: Iterable[JudgedResult]) -> list[Entry]:
    """List results in the order of their tables, each under a name of its own."""
    found = [_make_entry(result) for result in _drop_repeated(results)]
    found.sort(key=lambda entry: (place_in_table(entry.row), _locate(entry.row.judged)))
    return list(_number_twins(found))


def _drop_repeated(results: Iterable[JudgedResult]) -> Iterable[JudgedResult]:
    """Drop results whose folder was given twice."""
    return {_locate(result): result for result in results}.values()


def _locate(result: JudgedResult) -> str:
    return os.path.abspath(result.folder.path)


def _number_twins(found: Sequence[Entry]) -> Iterable[Entry]:
    """Tell results of one name apart; file systems that ignore case see more of those."""
    order = sorted(found, key=lambda entry: _locate(entry.row.judged))
    numbers: dict[int, int] = {}
    seen: Counter[str] = Counter()
    for entry in order:
        seen[entry.id.casefold()] += 1
        numbers[id(entry)] = seen[entry.id.casefold()]
    for entry in found:
        number = numbers[id(entry)]
        yield replace(entry, id=f"{entry.id}~{number}", twin=number) if number > 1 else entry


def _make_entry(judged: JudgedResult) -> Entry:
    row, judged_by = make_row(judged), judged.definition or judged.benchmark
    held = judged_by.runs if judged_by and row.has_score else None
    kept = _find_kept(judged.runs, held) if held else frozenset()
    batch_sizes = {run.batch_size for run in judged.runs}
    return Entry(
        id=_make_id(row),
        row=row,
        definition=judged.definition,
        runs=tuple(_make_run(run, place in kept) for place, run in enumerate(judged.runs)),
        convergence=judged.convergence,
        availability=_read_availability(judged.system),
        batch_size=batch_sizes.pop() if len(batch_sizes) == 1 else None,
        picture=_find_picture(judged.runs),
        code=_find_code(row),
        system=judged.system,
    )


def _make_run(summary: RunSummary, counts: bool) -> Run:
    if summary.course is None:
        raise ValueError(f"{summary.path}: judged without its course; judge(…, with_course=True)")
    return Run(summary, summary.course, counts)


def _make_id(row: Row) -> str:
    task = "-".join(filter(None, (row.names.benchmark, row.names.scale, row.names.division)))
    return "/".join(map(make_slug, (row.names.submitter, row.names.system, task)))


def _read_availability(system: Mapping[str, object]) -> str:
    status = system.get("status")
    return escape(status[:40]) if isinstance(status, str) else ""


def _find_kept(runs: Sequence[RunSummary], held: Runs) -> frozenset[int]:
    return frozenset(trim([run.minutes for run in runs], held.drop_fastest, held.drop_slowest))


def _find_picture(runs: Sequence[RunSummary]) -> Path | None:
    """Find the picture of the first run that has one, if it is a picture and not too large."""
    for run in runs:
        path = run.path.with_name(f"pictures_{run.number}.png")
        try:
            if path.is_symlink() or not path.is_file() or path.stat().st_size > PICTURE_BYTES_MAX:
                continue
            with path.open("rb") as file:
                if file.read(len(PNG)) == PNG:
                    return path
        except OSError:  # it was moved meanwhile, or cannot be read
            continue
    return None


def _find_code(row: Row) -> Path | None:
    """Find the submitted code of the benchmark: ``benchmarks/<name>`` beside ``results``.

    A link on the way could lead anywhere, and what is there would be published.
    """
    folder = row.round_kind.find_code(row.judged, row.names.benchmark)
    if folder is None or not folder.is_dir():
        return None
    return None if folder.is_symlink() or folder.parent.is_symlink() else folder


def name_entry(entry: Entry) -> str:
    """Name an entry ``submitter/system``, with a number where others have the name too."""
    number = f" ({entry.twin})" if entry.twin > 1 else ""
    return f"{entry.row.names.submitter}/{entry.row.names.system}{number}"


@dataclass(frozen=True)
class Tab:
    """A table of the round: the results of one scale and division."""

    name: str
    scale: str
    division: str
    entries: tuple[Entry, ...]

    @property
    def page(self) -> str:
        """The file of its page."""
        return f"{self.name}.html"

    @property
    def title(self) -> str:
        """``mini scale, closed division``."""
        scale = f"{self.scale} scale, " if self.scale else ""
        return f"{scale}{self.division} division"
