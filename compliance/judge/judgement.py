"""Turn what was read into findings: every check that a round requires, over whole packages."""

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from cepheid.compliance.checks import check_logs_of_submitter, check_submitter
from cepheid.compliance.checks.registry import Place, find_round_benchmark
from cepheid.compliance.checks.result.copies import TracedResult, find_recycled
from cepheid.compliance.checks.result.sources import find_differing
from cepheid.compliance.checks.submission.files import report_stray
from cepheid.compliance.checks.submission.machine import describe_machine
from cepheid.compliance.failure import Failures, isolate, report_failure
from cepheid.compliance.finding import Finding, sort_findings
from cepheid.compliance.judge.decided import apply_waivers, is_withdrawn, report_decisions
from cepheid.compliance.judge.unit import Each, JudgedUnit, Kept, Unit, find_definition, judge_unit
from cepheid.compliance.read.contents import ResultFolder, Submitter
from cepheid.compliance.read.decisions import Waiver
from cepheid.compliance.read.layout import SUBMISSIONS
from cepheid.compliance.read.package import Package
from cepheid.compliance.read.summary import ResultSummary, RunSummary
from cepheid.compliance.score import mlcommons
from cepheid.compliance.score.convergence import Convergence
from cepheid.compliance.score.standing import is_vouched_for, withhold
from cepheid.rules.definition import Definition
from cepheid.rules.host import release_memory
from cepheid.rules.rounds import Round, RoundBenchmark


@dataclass(frozen=True)
class JudgedResult:
    """A result with every finding that concerns it, also those about its system or submitter.

    ``system`` is the description of its system, empty without one. ``who`` is whose it is.
    """

    folder: ResultFolder
    place: Place
    judged_in: Round
    system: Mapping[str, object]
    findings: tuple[Finding, ...]
    summary: ResultSummary
    convergence: Convergence | None = None
    of_mlcommons: mlcommons.Convergence | None = None
    who: Submitter | None = None

    @property
    def runs(self) -> tuple[RunSummary, ...]:
        """The runs that count."""
        return self.summary.runs

    @cached_property
    def definition(self) -> Definition | None:
        """What the result is judged by in our own rounds; None for an unknown benchmark."""
        return find_definition(self.runs, self.place)

    @cached_property
    def benchmark(self) -> RoundBenchmark | None:
        """What the result is judged by in a round of MLPerf; None for an unknown benchmark."""
        known = (find_round_benchmark(run, self.place) for run in self.runs)
        return next(filter(None, known), None)


@dataclass(frozen=True)
class JudgedSubmitter:
    """A submitter's folder, its results, and the findings about all of it.

    ``waivers`` are those that cover an error here.
    """

    who: Submitter
    results: tuple[JudgedResult, ...]
    findings: tuple[Finding, ...]
    waivers: tuple[Waiver, ...] = ()

    @property
    def summaries(self) -> Mapping[Path, ResultSummary]:
        """The summary of each result by its folder."""
        return {result.folder.path: result.summary for result in self.results}


@dataclass(frozen=True)
class Judgement:
    """Everything that was found about one or more packages; ``findings`` are in order."""

    round: str
    submitters: tuple[JudgedSubmitter, ...]
    findings: tuple[Finding, ...]
    logs: int

    @property
    def results(self) -> tuple[JudgedResult, ...]:
        """The results of all submitters."""
        return tuple(result for submitter in self.submitters for result in submitter.results)


OwnedUnit = tuple[Unit, Submitter, JudgedUnit]


def judge(
    packages: Sequence[Package],
    judged_in: Round,
    each: Each = map,
    keep: Kept = "summaries",
    stood: Callable[[Path], bool] = lambda path: False,
) -> Judgement:
    """Judge everything that was listed, and parse each log once.

    ``each`` decides in which process the logs of a result are judged. ``keep`` may be findings
    alone for logs by themselves: what is found about a result needs the summaries of its logs.
    ``stood`` says of a file whether it stood on the base branch as it is, which decides who copied
    whom.
    """
    listed = [(package, who) for package in packages for who in package.submitters]
    units_of = [list_units(who, package, judged_in, keep) for package, who in listed]
    every = [unit for units in units_of for unit in units]
    owners = [who for (_, who), units in zip(listed, units_of, strict=True) for _ in units]
    answered = zip(every, owners, each(judge_unit, every), strict=True)
    answers = iter(_compare_all(list(answered), judged_in, stood))
    if not all(package.is_single_log for package in packages):
        release_memory()  # of what was compared, before more is made of the rest
    submitters = []
    strays = [report_stray(path) for package in packages for path in package.strays]
    for (package, who), units in zip(listed, units_of, strict=True):
        judged = [(unit, next(answers)) for unit in units]
        submitters.append(_judge_submitter(who, package.is_single_log, judged, judged_in))
    findings = strays + _report_decisions(packages, submitters, judged_in)
    findings += [finding for submitter in submitters for finding in submitter.findings]
    logs = sum(package.logs for package in packages)
    return Judgement(judged_in.name, tuple(submitters), tuple(sort_findings(findings)), logs)


def _report_decisions(
    packages: Sequence[Package], submitters: Sequence[JudgedSubmitter], judged_in: Round
) -> list[Finding]:
    used = [waiver for judged in submitters for waiver in judged.waivers]
    findings: list[Finding] = []
    for package in packages:
        if package.decisions:
            whole = [who.name for who in package.submitters if who.is_whole and who.name]
            is_collection = Path(os.path.abspath(package.path)).name == SUBMISSIONS
            named = None if is_collection else whole
            findings += report_decisions(package.decisions, judged_in, used, named)
    return list(dict.fromkeys(findings))


def _compare_all(
    units: Sequence[OwnedUnit], judged_in: Round, stood: Callable[[Path], bool]
) -> list[JudgedUnit]:
    """Add what the results have in common that no two runs may have."""
    if not any(answer.traces for _, _, answer in units):
        return [answer for _, _, answer in units]

    def compare(judged: Sequence[OwnedUnit]) -> list[list[Finding]]:
        traced = []
        for _, who, answer in judged:
            owner = Path(os.path.abspath(who.path))
            traced.append(TracedResult(answer.traces, answer.findings, owner, who.decisions))
        recycled = find_recycled(traced, judged_in, stood)
        sources = [[source for trace in one.traces for source in trace.sources] for one in traced]
        differing = find_differing(sources)
        return [[*found, *more] for found, more in zip(recycled, differing, strict=True)]

    def strip(one: OwnedUnit, error: Exception) -> OwnedUnit:
        unit, who, answer = one
        failure = report_failure(unit.folder.path, error)
        return unit, who, replace(answer, findings=(*answer.findings, failure), traces=())

    of_results, judged = isolate(units, compare, strip)
    return [
        replace(answer, findings=(*answer.findings, *recycled), traces=())
        for (_, _, answer), recycled in zip(judged, of_results, strict=True)
    ]


def list_units(
    who: Submitter, package: Package, judged_in: Round, keep: Kept = "summaries"
) -> list[Unit]:
    """List the results of a submitter as units that can be judged by themselves."""
    units = []
    for folder in who.results:
        place = replace(find_place(folder, who, judged_in), in_result=not package.is_single_log)
        units.append(Unit(folder, place, judged_in, who.files is not None, keep))
    return units


def find_place(folder: ResultFolder, who: Submitter, judged_in: Round) -> Place:
    """Return what the logs of a folder must say because of where the folder lies."""
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
        described=describe_machine(system),
    )


def _judge_submitter(
    who: Submitter,
    is_single_log: bool,
    judged: Sequence[tuple[Unit, JudgedUnit]],
    judged_in: Round,
) -> JudgedSubmitter:
    """Judge the folder around the results, and apply the waivers that hold.

    What fails in that is an error of all results of the submitter (S15).
    """
    failures = Failures()
    caught, used = failures.caught, list[Waiver]()
    about_folder: list[Finding] = []
    if not is_single_log:  # of a single log only the log itself is judged
        summaries = {unit.folder.path: answer.summary for unit, answer in judged}
        with caught(who.path):
            about_folder += check_submitter(who, judged_in)
        with caught(who.path):
            about_folder += check_logs_of_submitter(who, summaries, judged_in)
        about_folder = sort_findings(about_folder)

    def waive(findings: Sequence[Finding]) -> Sequence[Finding]:
        with caught(who.path):
            applied, waived_by = apply_waivers(findings, who, judged_in)
            used.extend(waived_by)
            return applied
        return findings

    about_folder = list(waive(about_folder))
    about_results = [waive(answer.findings) for _, answer in judged]
    about_folder += [*who.failures, *failures.findings]
    touching = _sort_by_result(about_folder, who)
    findings, results = list(about_folder), []
    for (unit, answer), about in zip(judged, about_results, strict=True):
        findings += about
        results.append(_make_result(unit, answer, who, [*touching[unit.folder.path], *about]))
    shown = [
        replace(finding, severity="warning")
        if finding.is_error and is_withdrawn(who, finding.path)
        else finding
        for finding in findings
    ]  # they are of no importance any more, and reject nothing
    return JudgedSubmitter(who, tuple(results), tuple(shown), tuple(used))


def _make_result(
    unit: Unit, answer: JudgedUnit, who: Submitter, findings: Sequence[Finding]
) -> JudgedResult:
    system, summary = who.systems.get(unit.folder.system or ""), answer.summary
    convergence = answer.convergence
    if not unit.judged_in.is_mlperf:  # there, scores stand whatever is found about them
        summary = withhold(summary, findings)
        convergence = convergence if is_vouched_for("samples", findings) else None
    return JudgedResult(
        unit.folder,
        unit.place,
        unit.judged_in,
        dict(system.content or {}) if system else {},
        tuple(sort_findings(findings)),
        summary,
        convergence,
        answer.of_mlcommons,
        who,
    )


def strip_result(result: JudgedResult, error: Exception) -> JudgedResult:
    """Return a result about which nothing can be shown, with the failure as an error (S15)."""
    failure = report_failure(result.folder.path, error)
    return replace(
        result,
        system={},
        findings=tuple(sort_findings([*result.findings, failure])),
        summary=ResultSummary(),
        convergence=None,
        of_mlcommons=None,
    )


def _sort_by_result(findings: Sequence[Finding], who: Submitter) -> Mapping[Path, list[Finding]]:
    """Sort the findings about a submitter's folder by the result that they touch.

    One about a result or a system touches that alone; one about anything else touches all results.
    """
    if not findings:
        return {result.path: [] for result in who.results}
    folders = {result.path for result in who.results}
    of_system = {folder.parent for folder in folders}
    of_system |= {system.path for system in who.systems.values()}
    touched: defaultdict[Path | None, list[Finding]] = defaultdict(list)
    for finding in findings:
        path = finding.path
        inside = next((folder for folder in (path, *path.parents) if folder in folders), None)
        touched[inside or (path if path in of_system else None)].append(finding)
    by_result = {}
    for result in who.results:
        system = who.systems.get(result.system or "")
        described = touched[system.path] if system else []
        around = [*touched[None], *described, *touched[result.path.parent]]
        by_result[result.path] = [*around, *touched[result.path]]
    return by_result
