"""From what was read to what is found: every check that a round asks for, over a whole package."""

import datetime
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from compliance.checks import (
    Place,
    check_log,
    check_result,
    check_submitter,
    definition_named,
    definition_of,
    round_benchmark_of,
)
from compliance.finding import Finding, in_order
from compliance.read import waivers
from compliance.read.package import Package, ResultFolder, Submitter
from rules.definition import Definition
from rules.rounds import Round, RoundBenchmark


@dataclass(frozen=True)
class JudgedResult:
    """A result with every finding that concerns it, also those about its system or submitter."""

    folder: ResultFolder
    place: Place
    system: dict[str, object]
    findings: tuple[Finding, ...]
    is_history: bool = False  # of a round of MLPerf

    @cached_property
    def definition(self) -> Definition | None:
        """What it is judged by in our own rounds; None where no benchmark of that name and scale
        exists."""
        if self.is_history:
            return None
        named = definition_named(self.place.benchmark, self.place.scale)
        logged = (definition_of(run, self.place) for run in self.folder.runs)
        return named or next(filter(None, logged), None)

    @cached_property
    def benchmark(self) -> RoundBenchmark | None:
        """What it is judged by in a round of MLPerf; None where the round has no such benchmark."""
        known = (round_benchmark_of(run, self.place) for run in self.folder.runs)
        return next(filter(None, known), None) if self.is_history else None


@dataclass(frozen=True)
class Judgement:
    """All findings about one or more packages, in order, and the same by result."""

    round: str
    results: tuple[JudgedResult, ...]
    findings: tuple[Finding, ...]
    logs: int


@dataclass(frozen=True)
class Unit:
    """The logs of one result: what can be judged by itself, in any process."""

    folder: ResultFolder
    place: Place
    judged_in: Round


Each = Callable[[Callable[[Unit], list[Finding]], Sequence[Unit]], Iterable[list[Finding]]]
"""Calls a function with each unit, and gives the answers in the order of the units."""


def judge(
    packages: Sequence[Package],
    judged_in: Round,
    each: Each = map,
    today: datetime.date | None = None,
) -> Judgement:
    """Check everything that was read; ``each`` says where the logs of each result are judged.
    ``today``, by UTC, decides which waivers still hold.
    """
    today = today or today_by_utc()
    units = [
        Unit(
            folder,
            replace(place_of(folder, who, judged_in), in_result=not package.is_single_log),
            judged_in,
        )
        for package in packages
        for who in package.submitters
        for folder in who.results
    ]
    judged = iter(zip(units, each(about_runs, units), strict=True))
    results: list[JudgedResult] = []
    findings: list[Finding] = []
    for package in packages:
        for who in package.submitters:
            about_folder = check_submitter(who, judged_in)
            if package.is_single_log:  # the question was about the log, not about the folder
                about_folder = []
            about_results = list(islice(judged, len(who.results)))
            waived_in = (who.waivers, who.path, judged_in, today)
            if who.is_whole:  # else what a waiver is about may not have been read
                everything = sum((raw for _, raw in about_results), about_folder)
                about_folder = [*about_folder, *waivers.without_effect(everything, *waived_in)]
            about_folder = waivers.applied(about_folder, *waived_in)
            findings += about_folder
            touching = _by_result(about_folder, who)
            for unit, raw in about_results:
                about = waivers.applied(raw, *waived_in)
                findings += about
                results.append(_judged(unit, who, [*touching[unit.folder.path], *about]))
    return Judgement(
        judged_in.name,
        tuple(results),
        tuple(in_order(findings)),
        sum(package.logs for package in packages),
    )


def today_by_utc() -> datetime.date:
    """The day that decides which waivers hold, the same everywhere."""
    return datetime.datetime.now(datetime.UTC).date()


def about_runs(unit: Unit) -> list[Finding]:
    """The findings about the logs of a result, each by itself and all together."""
    folder, place, judged_in = unit.folder, unit.place, unit.judged_in
    found = [finding for run in folder.runs for finding in check_log(run, place, judged_in)]
    if place.in_result and folder.runs:
        found += check_result(folder, place, judged_in)
    return found


def place_of(folder: ResultFolder, who: Submitter, judged_in: Round) -> Place:
    """What the logs of a folder must say because of where it lies."""
    system = who.systems.get(folder.system or "")
    if judged_in.layout == "mlperf":
        return Place(
            round=judged_in.name,
            submitter=Path(os.path.abspath(who.path)).name if folder.system else None,
            system=folder.system,
            benchmark=folder.benchmark,
            scale=folder.scale,
            division=system.text("division") if system else None,
        )
    benchmark, scale, division = folder.parts or (None, None, None)
    return Place(
        round=judged_in.name,
        submitter=system.text("submitter") if system else None,
        system=folder.system,
        benchmark=benchmark,
        scale=scale,
        division=division,
        in_submission=who.in_submission,
    )


def _judged(unit: Unit, who: Submitter, findings: list[Finding]) -> JudgedResult:
    system = who.systems.get(unit.folder.system or "")
    described = dict(system.content or {}) if system else {}
    is_history = unit.judged_in.is_history
    return JudgedResult(unit.folder, unit.place, described, tuple(in_order(findings)), is_history)


def _by_result(findings: Iterable[Finding], who: Submitter) -> Mapping[Path, list[Finding]]:
    """Which findings about a submitter's folder touch which result, by the result's path.

    One about a result or a system touches that alone; one about anything else touches all.
    """
    folders = {result.path for result in who.results}
    of_system = {folder.parent for folder in folders}
    of_system |= {system.path for system in who.systems.values()}
    touched: defaultdict[Path | None, list[Finding]] = defaultdict(list)
    for finding in findings:
        path = finding.path
        inside = next((folder for folder in (path, *path.parents) if folder in folders), None)
        touched[inside or (path if path in of_system else None)].append(finding)
    found = {}
    for result in who.results:
        system = who.systems.get(result.system or "")
        described = touched[system.path] if system else []
        around = [*touched[None], *described, *touched[result.path.parent]]
        found[result.path] = [*around, *touched[result.path]]
    return found
