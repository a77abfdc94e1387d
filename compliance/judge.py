"""From what was read to what is found: every check that a round asks for, over a whole package."""

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
)
from compliance.finding import Finding, in_order
from compliance.package import Package, ResultFolder, Submitter
from rules.definition import Definition
from rules.rounds import Round


@dataclass(frozen=True)
class JudgedResult:
    """A result with every finding that concerns it, also those about its system or submitter."""

    folder: ResultFolder
    place: Place
    system: dict[str, object]
    findings: tuple[Finding, ...]

    @cached_property
    def definition(self) -> Definition | None:
        """What it is judged by; None where no benchmark of that name and scale exists."""
        named = definition_named(self.place.benchmark, self.place.scale)
        logged = (definition_of(run, self.place) for run in self.folder.runs)
        return named or next(filter(None, logged), None)


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


def judge(packages: Sequence[Package], judged_in: Round, each: Each = map) -> Judgement:
    """Check everything that was read; ``each`` says where the logs of each result are judged."""
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
            findings += about_folder
            touching = _by_result(about_folder, who)
            for unit, about in islice(judged, len(who.results)):
                findings += about
                concerning = touching[unit.folder.path]
                results.append(_judged(unit.folder, unit.place, who, [*concerning, *about]))
    return Judgement(
        judged_in.name,
        tuple(results),
        tuple(in_order(findings)),
        sum(package.logs for package in packages),
    )


def about_runs(unit: Unit) -> list[Finding]:
    """The findings about the logs of a result, each by itself and all together."""
    folder, place, judged_in = unit.folder, unit.place, unit.judged_in
    found = [finding for run in folder.runs for finding in check_log(run, place, judged_in)]
    if place.in_result and folder.runs:
        found += check_result(folder, place, judged_in)
    return found


def place_of(folder: ResultFolder, who: Submitter, judged_in: Round) -> Place:
    """What the logs of a folder must say because of where it lies."""
    benchmark, scale, division = folder.parts or (None, None, None)
    system = who.systems.get(folder.system or "")
    return Place(
        round=judged_in.name,
        submitter=system.text("submitter") if system else None,
        system=folder.system,
        benchmark=benchmark,
        scale=scale,
        division=division,
        in_submission=who.in_submission,
    )


def _judged(
    folder: ResultFolder, place: Place, who: Submitter, findings: list[Finding]
) -> JudgedResult:
    system = who.systems.get(folder.system or "")
    described = dict(system.content or {}) if system else {}
    return JudgedResult(folder, place, described, tuple(in_order(findings)))


def _by_result(findings: Iterable[Finding], who: Submitter) -> Mapping[Path, list[Finding]]:
    """Which findings about a submitter's folder touch which result, by the result's path.

    One about a result or a system touches that alone; one about anything else touches all.
    """
    folders = {result.path for result in who.results}
    of_systems = {folder.parent for folder in folders}
    systems = {system.path: name for name, system in who.systems.items()}
    touched: defaultdict[Path | str | None, list[Finding]] = defaultdict(list)
    for finding in findings:
        path = finding.path
        inside = next((folder for folder in (path, *path.parents) if folder in folders), None)
        if inside is None and path in systems:
            touched[systems[path]].append(finding)
        else:
            touched[inside or (path if path in of_systems else None)].append(finding)
    return {
        result.path: [
            *touched[None],
            *(touched[result.system] if result.system else ()),
            *touched[result.path.parent],
            *touched[result.path],
        ]
        for result in who.results
    }
