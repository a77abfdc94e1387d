"""One result as tables and pages show it.

An entry has a number only where nothing stands against it: a rejected result shows its reasons, one
with too few runs its count. Results are ranked only within one benchmark, scale and division (T22).
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from cepheid.compliance.finding import Finding
from cepheid.compliance.judge.judgement import JudgedResult
from cepheid.compliance.read.summary import Course, Pace, RunSummary, unpack_course
from cepheid.compliance.read.texts import PNG
from cepheid.compliance.score.kinds import MINUTES, BenchmarkKind, find_kind
from cepheid.compliance.score.levels import Level
from cepheid.compliance.score.standing import Standing
from cepheid.compliance.score.trimmed import Estimate
from cepheid.leaderboard.rows.facts import (
    Begun,
    Energy,
    Hardware,
    Names,
    Progress,
    RunCounts,
    count_begun,
    count_runs,
    find_code,
    find_machine,
    find_names,
    find_peak_share,
    find_progress,
    find_standing,
    measure_energy,
    measure_pace,
    read_hardware,
)
from cepheid.rules.definition import Definition, Runs
from cepheid.rules.systems import PeakShare

PICTURE_BYTES_MAX = 2**20
AVAILABILITIES = {  # in words of descriptions of our rounds and of MLPerf's
    "preview": ("preview",),
    "research": ("research", "rdi", "internal", "unofficial"),
    "available": ("available", "cloud", "onprem", "on-prem"),
}

Key = TypeVar("Key", bound=Hashable)
Group = tuple[str, str, str]
"""Benchmark, scale and division: what results are ranked within."""


@dataclass(frozen=True)
class Comparison:
    """The samples to target compared with those of the reference (rule T21).

    ``verdict`` is empty where the rule does not apply. ``factor`` is for the reader: only the
    verdict affects the score. ``is_interpolated`` is False where the reference's curves were not
    kept. ``p_value`` is that of mlcommons' test, in its rounds.
    """

    verdict: str = ""
    factor: float | None = None
    is_interpolated: bool = True
    p_value: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the site shows it.

    ``counts`` is True where the number that orders its table is a mean over it. ``value`` is that
    of the run, None where the result has no number or the run missed its targets.
    """

    summary: RunSummary
    counts: bool
    value: float | None = None

    @property
    def course(self) -> Course:
        """What happened in the run."""
        return unpack_course(self.summary.packed_course)


@dataclass(frozen=True)
class Entry:
    """One result.

    ``reasons`` are the errors, then the warnings, each once, with the number of files that it is
    about. ``energy`` is None unless it was measured and the result has a score. So are ``pace`` and
    ``peak_share``, the share of the system's peak that it reached (MFU). ``held`` is how its runs
    are counted, None for an unknown benchmark. ``twin`` counts results of one name from 2 on, in
    the order of their folders.
    """

    judged: JudgedResult
    definition: Definition | None
    held: Runs | None
    names: Names
    kind: BenchmarkKind
    hardware: Hardware
    counts: RunCounts
    standing: Standing
    progress: Progress
    reference: Comparison
    energy: Energy | None
    pace: Pace | None
    peak_share: PeakShare | None
    reasons: tuple[str, ...]
    begun: Begun
    twin: int = 1

    @cached_property
    def id(self) -> str:
        """The permalink: submitter, system, benchmark, scale and division."""
        names = self.names
        task = "-".join(filter(None, (names.benchmark, names.scale, names.division)))
        link = "/".join(map(make_slug, (names.submitter, names.system, task)))
        return f"{link}~{self.twin}" if self.twin > 1 else link

    @property
    def name(self) -> str:
        """``submitter/system``, with a number where others have the name too."""
        return f"{self.names} ({self.twin})" if self.twin > 1 else str(self.names)

    @property
    def group(self) -> Group:
        """What results are ranked within."""
        return self.names.benchmark, self.names.scale or "", self.names.division

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
        return f"{make_slug(self.names.scale or 'all')}-{make_slug(self.names.division)}"

    @property
    def benchmark_page(self) -> str:
        """The file of its benchmark's page."""
        parts = map(make_slug, (self.names.benchmark, self.names.scale or ""))
        return f"benchmarks/{'-'.join(filter(None, parts))}.html"

    @property
    def is_of_mlperf(self) -> bool:
        """True in rounds of MLPerf, whose scores are times and stand beside a verdict."""
        return self.judged.judged_in.is_mlperf

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the checker says of it."""
        return self.judged.findings

    @property
    def provisional_targets(self) -> str:
        """Why the targets of the benchmark may still change, or nothing."""
        return (self.definition.provisional or "") if self.definition else ""

    @property
    def kilojoules(self) -> float | None:
        """The energy of a run, None where it was not measured."""
        joules = self.energy.joules if self.energy else None
        return None if joules is None else joules / 1000

    @property
    def has_score(self) -> bool:
        """True where a number stands in the table: a score, or a time without one."""
        return self.standing.score is not None

    @property
    def is_scored(self) -> bool:
        """True where the number is a score, also a provisional one, and not only a time."""
        return self.standing.score is not None and self.standing.score.is_score

    @property
    def is_ranked(self) -> bool:
        """True where the result has a score that stands in a ranking: a provisional one does not.

        In rounds of MLPerf the time to train is the score.
        """
        return self.is_scored and not self.standing.doubt

    @property
    def main(self) -> Estimate | None:
        """The number that orders the table, None without any."""
        return self.standing.score.main if self.standing.score else None

    @property
    def time(self) -> Estimate | None:
        """The time to train; None without any number, and for a benchmark that generates."""
        return self.standing.score.estimates.get(MINUTES) if self.standing.score else None

    @property
    def level(self) -> Level | None:
        """What the result is compared by, None without any number and where that is provisional."""
        score = self.standing.score
        return score.level if score and not self.standing.doubt else None

    @property
    def is_known(self) -> bool:
        """True where the round has such a benchmark."""
        return self.held is not None

    @property
    def devices(self) -> int:
        """Accelerators, or nodes where there are none."""
        return self.hardware.accelerators or self.hardware.nodes or 1

    @property
    def availability(self) -> str:
        """Whether the system can be bought: a word of ``AVAILABILITIES``, empty where unsaid."""
        status = self.judged.system.get("status")
        said = status.casefold() if isinstance(status, str) else ""
        return next((word for word, parts in AVAILABILITIES.items()
                     if any(part in said for part in parts)), "other" if said else "")  # fmt: skip

    @property
    def batch_size(self) -> int | None:
        """The global batch size that all runs have, else None."""
        sizes = {run.batch_size for run in self.judged.runs}
        return sizes.pop() if len(sizes) == 1 else None

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The runs with what happened in them, for results that were judged with their course."""
        score, runs = self.standing.score, []
        for place, summary in enumerate(self.judged.runs):
            if not summary.packed_course:
                path = summary.path
                raise ValueError(f"{path}: judged without its course; judge(…, keep='courses')")
            counts, value = (
                (place in score.counted, score.values[place]) if score else (False, None)
            )
            runs.append(Run(summary, counts, value))
        return tuple(runs)

    @cached_property
    def picture(self) -> Path | None:
        """The picture of the first run that has one, if it is a picture and not too large."""
        paths = (run.path.with_name(f"pictures_{run.number}.png") for run in self.judged.runs)
        return next(filter(_is_picture, paths), None)

    @cached_property
    def code(self) -> Path | None:
        """The submitted code of the benchmark, if there is any."""
        return find_code(self.judged, self.names.benchmark)


def _is_picture(path: Path) -> bool:
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > PICTURE_BYTES_MAX:
            return False
        with path.open("rb") as file:
            return file.read(len(PNG)) == PNG
    except OSError:  # it was moved meanwhile, or cannot be read
        return False


def make_entry(result: JudgedResult, begun: Begun) -> Entry:
    """Make the entry of one result, of which so many runs were begun."""
    definition, standing = result.definition, find_standing(result)
    judged_by = definition or result.benchmark
    held = judged_by.runs if judged_by else None
    pace = measure_pace(result.runs) if standing.score else None
    return Entry(
        judged=result,
        definition=definition,
        held=held,
        names=find_names(result),
        kind=find_kind(definition),
        hardware=read_hardware(find_machine(result)),
        counts=count_runs(result.runs, held.required if held else 0),
        standing=standing,
        progress=Progress() if standing.is_rejected else find_progress(result),
        reference=_compare(result, standing),
        energy=measure_energy(result) if standing.score else None,
        pace=pace,
        peak_share=find_peak_share(result, pace),
        reasons=tuple(_list_reasons(result.findings)),
        begun=begun,
    )


def _compare(result: JudgedResult, standing: Standing) -> Comparison:
    if result.of_mlcommons:
        found = result.of_mlcommons
        return Comparison(found.verdict, found.factor, p_value=found.p_value)
    if result.convergence is None:
        return Comparison()
    verdict, expected = result.convergence.verdict, result.convergence.expected
    factor = None if standing.is_rejected else result.convergence.factor
    return Comparison(verdict, factor, expected is None or expected.is_interpolated)


def _list_reasons(findings: Iterable[Finding]) -> Iterator[str]:
    """List errors, then warnings; of those that say the same, one for all of their files."""
    for severity in ("error", "warning"):
        paths_of: dict[str, set[Path]] = {}
        for finding in findings:
            if finding.severity == severity:
                paths_of.setdefault(finding.headline, set()).add(finding.path)
        for headline, paths in paths_of.items():
            yield headline if len(paths) == 1 else f"{headline} (in {len(paths)} files)"


def list_rows(results: Iterable[JudgedResult]) -> list[Entry]:
    """List one entry for each result, group by group, the fastest first."""
    known = list(results)
    begun = count_begun(known)
    made = (make_entry(result, begun[result.folder.path]) for result in known)
    return sorted(made, key=_place_in_table)


def list_entries(results: Iterable[JudgedResult]) -> list[Entry]:
    """List results in the order of their tables, each once and under a name of its own."""
    by_folder = {_locate(result): result for result in results}
    return list(_number_twins(list_rows(by_folder[folder] for folder in sorted(by_folder))))


def group_entries(
    entries: Iterable[Entry], find_key: Callable[[Entry], Key]
) -> dict[Key, list[Entry]]:
    """Group entries and keep their order."""
    groups: dict[Key, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(find_key(entry), []).append(entry)
    return groups


def describe_group(benchmark: str, scale: str | None, division: str) -> str:
    """Describe what results are ranked within: ``ssd, mini scale, closed division``."""
    division = division and f"{division} division"
    return ", ".join(filter(None, (benchmark, scale and f"{scale} scale", division)))


def make_slug(name: str) -> str:
    """Turn ``name`` into a part of file names and addresses; no other name gives the same."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:64]
    if plain == name and not plain.startswith("."):
        return plain
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain.lstrip('.-')}-{digest}" if name else ""


def _place_in_table(entry: Entry) -> tuple[Any, ...]:
    """Return the key that sorts entries: by group, those with a score and the fastest first."""
    standing, names = entry.standing, entry.names
    place = standing.place, not entry.is_ranked, standing.cost
    return entry.group, *place, names.submitter, names.system


def _locate(result: JudgedResult) -> str:
    return os.path.abspath(result.folder.path)


def _number_twins(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Tell results of one name apart; file systems that ignore case see more of those."""
    counts: Counter[str] = Counter()
    numbers: dict[str, int] = {}
    for entry in sorted(entries, key=lambda entry: _locate(entry.judged)):
        counts[entry.id.casefold()] += 1
        numbers[_locate(entry.judged)] = counts[entry.id.casefold()]
    for entry in entries:
        yield replace(entry, twin=numbers[_locate(entry.judged)])
