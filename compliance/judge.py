"""From what was read to what is found: every check that a round asks for, over a whole package."""

import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compliance import waivers
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
from compliance.package import Package, ResultFolder, Submitter
from rules.definition import Definition
from rules.rounds import Round, RoundBenchmark


@dataclass(frozen=True)
class JudgedResult:
    """A result with every finding that concerns it, also those about its system or submitter.

    ``definition`` is None where no benchmark of that name and scale exists. In a round of MLPerf
    there is the ``benchmark`` of the round instead, or None for one that it does not have.
    """

    folder: ResultFolder
    place: Place
    system: dict[str, object]
    definition: Definition | None
    findings: tuple[Finding, ...]
    benchmark: RoundBenchmark | None = None
    is_history: bool = False  # of a round of MLPerf


@dataclass(frozen=True)
class Judgement:
    """All findings about one or more packages, in order, and the same by result."""

    round: str
    results: tuple[JudgedResult, ...]
    findings: tuple[Finding, ...]
    logs: int


def judge(
    packages: Sequence[Package], judged_in: Round, today: datetime.date | None = None
) -> Judgement:
    """Check everything that was read. ``today``, by UTC, decides which waivers still hold."""
    today = today or datetime.datetime.now(datetime.UTC).date()
    results: list[JudgedResult] = []
    findings: list[Finding] = []
    for package in packages:
        for who in package.submitters:
            about_folder = check_submitter(who, judged_in)
            if package.is_single_log:  # the question was about the log, not about the folder
                about_folder = []
            places = [
                replace(place_of(folder, who, judged_in), in_result=not package.is_single_log)
                for folder in who.results
            ]
            about_results = [
                _about_runs(folder, place, judged_in)
                for folder, place in zip(who.results, places, strict=True)
            ]
            waived_in = (who.waivers, who.path, judged_in, today)
            if who.is_whole:  # else what a waiver is about may not have been read
                everything = sum(about_results, about_folder)
                about_folder = [*about_folder, *waivers.without_effect(everything, *waived_in)]
            about_folder = waivers.applied(about_folder, *waived_in)
            findings += about_folder
            for folder, place, raw in zip(who.results, places, about_results, strict=True):
                about_runs = waivers.applied(raw, *waived_in)
                findings += about_runs
                concerning = [f for f in about_folder if _concerns(f.path, folder, who)]
                found = _judged(folder, place, who, [*concerning, *about_runs])
                results.append(replace(found, is_history=judged_in.is_history))
    return Judgement(
        judged_in.name,
        tuple(results),
        tuple(in_order(findings)),
        sum(package.logs for package in packages),
    )


def _about_runs(folder: ResultFolder, place: Place, judged_in: Round) -> list[Finding]:
    found = [finding for run in folder.runs for finding in check_log(run, place, judged_in)]
    return found + (
        check_result(folder, place, judged_in) if place.in_result and folder.runs else []
    )


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


def _judged(
    folder: ResultFolder, place: Place, who: Submitter, findings: list[Finding]
) -> JudgedResult:
    system = who.systems.get(folder.system or "")
    known = (definition_of(run, place) for run in folder.runs)
    of_round = (round_benchmark_of(run, place) for run in folder.runs)
    return JudgedResult(
        folder,
        place,
        dict(system.content or {}) if system else {},
        next(filter(None, known), definition_named(place.benchmark, place.scale)),
        tuple(in_order(findings)),
        next(filter(None, of_round), None),
    )


def _concerns(path: Path, folder: ResultFolder, who: Submitter) -> bool:
    """Whether a finding about a submitter's folder touches a result.

    One about another result or another system does not; one about anything else does.
    """
    others = [other.path for other in who.results if other.path != folder.path]
    if any(path == other or other in path.parents for other in others):
        return False
    own_system = who.systems.get(folder.system or "")
    other_systems = [s.path for s in who.systems.values() if s is not own_system]
    other_folders = [other.parent for other in others if other.parent != folder.path.parent]
    return path not in other_systems and path not in other_folders
