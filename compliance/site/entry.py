"""What the site shows of a result: its row, its runs, its picture and the code that made it."""

import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from compliance.finding import escape
from compliance.judge.judgement import JudgedResult, Judgement
from compliance.leaderboard import Row, place_in_table, row_of
from compliance.leaderboard.row import RANKED_BY
from compliance.read.course import Course
from compliance.read.summary import RunSummary
from compliance.score.comparison import Level, level
from compliance.score.convergence import Convergence
from compliance.score.scores import kept_by_trimming
from rules.definition import Definition, Runs

PICTURE_BYTES_MAX = 2**20
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Run:
    """A run as the site shows it. ``counts`` is True where the score is a mean over it."""

    summary: RunSummary
    course: Course
    counts: bool


@dataclass(frozen=True)
class Entry:
    """One result. ``id`` is its permalink: submitter, system, benchmark, scale and division.

    ``twin`` counts results of the same name from 2 on, in the order of their folders. ``level`` is
    what it is compared by, None without a score.
    """

    id: str
    row: Row
    definition: Definition | None
    runs: tuple[Run, ...]
    level: Level | None
    convergence: Convergence | None
    availability: str
    batch_size: int | None
    twin: int = 1
    picture: Path | None = None
    code: Path | None = None
    system: Mapping[str, object] = field(default_factory=dict)

    @property
    def page(self) -> str:
        """Where its page stands in the site."""
        return f"results/{self.id}.html"

    @property
    def system_id(self) -> str:
        """Submitter and system."""
        return "/".join(self.id.split("/")[:2])

    @property
    def system_page(self) -> str:
        """Where the page of its system stands."""
        return f"systems/{self.system_id}.html"

    @property
    def tab(self) -> str:
        """The table of the round that it stands in: scale and division."""
        return f"{slug(self.row.scale or 'all')}-{slug(self.row.division)}"

    @property
    def benchmark_page(self) -> str:
        """Where the page of its benchmark stands."""
        name = "-".join(filter(None, (slug(self.row.benchmark), slug(self.row.scale or ""))))
        return f"benchmarks/{name}.html"

    @property
    def devices(self) -> int:
        """Accelerators, or nodes where there are none."""
        return self.row.accelerators or self.row.nodes or 1

    @property
    def is_known(self) -> bool:
        """Whether there is such a benchmark in the round."""
        return self.definition is not None or self.row.judged.benchmark is not None


def slug(name: str) -> str:
    """``name`` as part of a file's name and of an address; another name never gives the same."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:64]
    if plain == name and not plain.startswith("."):
        return plain
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain.lstrip('.-')}-{digest}" if name else ""


def entries(judgement: Judgement) -> list[Entry]:
    """All results in the order of their tables, each under a name of its own."""
    found = [_entry(result) for result in _each_once(judgement.results)]
    found.sort(key=lambda entry: (place_in_table(entry.row), _folder(entry.row.judged)))
    return list(_told_apart(found))


def _each_once(results: Iterable[JudgedResult]) -> Iterable[JudgedResult]:
    """Results whose folder was given twice are read once."""
    return {_folder(result): result for result in results}.values()


def _folder(result: JudgedResult) -> str:
    return os.path.abspath(result.folder.path)


def _told_apart(found: Sequence[Entry]) -> Iterable[Entry]:
    """Two systems may bear one name; file systems that know no case see more of those."""
    order = sorted(found, key=lambda entry: _folder(entry.row.judged))
    numbers: dict[int, int] = {}
    seen: Counter[str] = Counter()
    for entry in order:
        seen[entry.id.casefold()] += 1
        numbers[id(entry)] = seen[entry.id.casefold()]
    for entry in found:
        number = numbers[id(entry)]
        yield replace(entry, id=f"{entry.id}~{number}", twin=number) if number > 1 else entry


def _entry(judged: JudgedResult) -> Entry:
    row, definition = row_of(judged), judged.definition
    asked = definition.runs if definition else judged.benchmark.runs if judged.benchmark else None
    kept = _kept(judged.runs, asked) if row.has_score and asked else frozenset()
    runs = tuple(_run(run, place in kept) for place, run in enumerate(judged.runs))
    batch_sizes = {run.batch_size for run in judged.runs}
    return Entry(
        id=_id(row),
        row=row,
        definition=definition,
        runs=runs,
        level=_level(row, judged.runs, asked) if row.has_score and asked else None,
        convergence=judged.convergence,
        availability=_availability(judged.system),
        batch_size=batch_sizes.pop() if len(batch_sizes) == 1 else None,
        picture=_picture(judged.runs),
        code=_code(judged, row),
        system=judged.system,
    )


def _run(summary: RunSummary, counts: bool) -> Run:
    if summary.course is None:
        raise ValueError(f"{summary.path}: judged without its course; judge(…, with_course=True)")
    return Run(summary, summary.course, counts)


def _id(row: Row) -> str:
    task = "-".join(filter(None, (row.benchmark, row.scale, row.division)))
    return "/".join(map(slug, (row.submitter, row.system, task)))


def _availability(system: Mapping[str, object]) -> str:
    status = system.get("status")
    return escape(status[:40]) if isinstance(status, str) else ""


def _kept(runs: Sequence[RunSummary], asked: Runs) -> frozenset[int]:
    minutes = [run.minutes for run in runs]
    return frozenset(kept_by_trimming(minutes, asked.drop_fastest, asked.drop_slowest))


def _level(row: Row, runs: Sequence[RunSummary], asked: Runs) -> Level | None:
    """By time to train, or by seconds per image, of which the least is the fastest."""
    if row.generates:
        speeds = [run.generation.get(RANKED_BY, 0.0) for run in runs]
        costs = [1 / speed if speed > 0 else math.inf for speed in speeds]
    else:
        costs = [run.minutes for run in runs]
    return level(costs, asked.drop_fastest, asked.drop_slowest)


def _picture(runs: Sequence[RunSummary]) -> Path | None:
    """The picture of the first run that has one, if it is one and not too large."""
    for run in runs:
        path = run.path.with_name(f"pictures_{run.number}.png")
        if path.is_symlink() or not path.is_file() or path.stat().st_size > PICTURE_BYTES_MAX:
            continue
        with path.open("rb") as file:
            if file.read(len(PNG)) == PNG:
                return path
    return None


def _code(judged: JudgedResult, row: Row) -> Path | None:
    """The submitted code of the benchmark: ``benchmarks/<name>`` beside ``results``."""
    if judged.judged_in.is_history or not judged.folder.parts:
        return None
    folder = Path(os.path.abspath(judged.folder.path)).parents[2] / "benchmarks" / row.benchmark
    return folder if folder.is_dir() and not folder.is_symlink() else None
