"""M1 to M3: the rules of mlcommons for a log, the logs of a result, and its convergence."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from cepheid.compliance.checks.mlperf.submitted import find_power_problems
from cepheid.compliance.checks.mlperf.verdict import Breach, Kind, find_breaches
from cepheid.compliance.checks.registry import BATCH_SIZE, Needs, Place, find_division, rule
from cepheid.compliance.finding import Finding, breach, escape, format_value
from cepheid.compliance.read.contents import is_like_log
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.logs import ResultLogs
from cepheid.compliance.read.mlperf_folders import PRUNED, SCALING
from cepheid.compliance.read.summary import is_scaling
from cepheid.compliance.score import mlcommons
from cepheid.compliance.score.mlcommons import Convergence
from cepheid.rules import rounds
from cepheid.rules.definition import Definition
from cepheid.rules.events import is_integer
from cepheid.rules.rounds import RoundBenchmark

_FOUND: WeakKeyDictionary[RunLog, tuple[Breach, ...]] = WeakKeyDictionary()


def list_breaches(run: RunLog, place: Place) -> tuple[Breach, ...]:
    """Return the rules of its round that a log breaks; a log is judged once."""
    if run not in _FOUND:
        rule_set = rounds.load(place.round).rule_set
        has_rules = rule_set and not rule_set.runs
        _FOUND[run] = find_breaches(run, rule_set) if rule_set and has_rules else ()
    return _FOUND[run]


@rule("M1", Needs.RECORDS)
def check_rules(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check a log by the rules of mlcommons for its round (M1).

    A result may have as many broken logs as its score drops (M2), so that one is a warning there.
    """
    second = find_second_start(run)
    if second:
        yield breach(run, second, "M1.second_run", line=run.all("run_start")[0].line)
        return
    for found in list_breaches(run, place):
        if found.kind == "never" and not run.converged:
            continue  # T17 reports a run that did not reach its target
        if found.kind == "missing" and found.keys == ("run_stop",):
            continue  # and one that did not end
        finding = _describe(run, found)
        yield replace(finding, severity="warning") if place.in_result else finding


def find_second_start(run: RunLog) -> Event | None:
    """Return the first record of a run that was started again into the same log, or None."""
    starts = run.all("run_start")
    if len(starts) < 2:
        return None
    again = (*run.all("submission_benchmark"), *run.all("init_start"))
    after = [event for event in again if starts[0].line < event.line < starts[-1].line]
    return min(after, key=lambda event: event.line, default=None)


def _describe(run: RunLog, found: Breach) -> Finding:
    if found.kind in ("repeated", "equal"):
        return breach(
            run, found.at, "M1.repeated", case="equal" if found.kind == "equal" else "",
            number=found.times, line=found.first_line, got=found.got, file=found.file,
        )  # fmt: skip
    times = f" (in {found.times:,} records)" if found.times > 1 else ""
    words = escape(found.check.words) if found.check else ""
    return breach(
        run, found.at, _CODES[found.kind], keys=escape(" or ".join(found.keys)),
        least=found.least, plural="" if found.least == 1 else "s", times=times, words=words,
        got=found.got, file=escape(found.file), number=found.times,
    )  # fmt: skip


_CODES: Mapping[Kind, str] = {
    "missing": "M1.missing",
    "value": "M1.value",
    "never": "M1.never",
    "end": "M1.end",
    "unreadable": "M1.unreadable",
    "no_rules": "M1.no_rules",
}


@rule("M2", Needs.RESULT)
def check_logs_of_result(
    result: ResultLogs, judged_by: Definition | RoundBenchmark, place: Place
) -> Iterator[Finding]:
    """Check that a result has as many logs as the round requires, and few that break rules (M2)."""
    if not place.in_result:
        return
    required, runs = judged_by.runs.required, len(result.runs)
    if not _has_enough(result, judged_by):
        odd = [escape(path.name) for path in result.folder.unexpected if is_like_log(path)]
        beside = f", beside {', '.join(odd[:NAMED_MAX])}" if odd else ""
        yield breach(
            result, None, "M2.number_of_runs", runs=runs, plural="" if runs == 1 else "s",
            benchmark=judged_by.name, required=required, beside=beside,
        )  # fmt: skip
    if any(path.name == PRUNED for path in result.folder.unexpected):
        yield breach(result.path / PRUNED, None, "M2.pruned")
    if not is_scaling(result.scaling):
        yield breach(result.path / SCALING, None, "M2.scaling", got=format_value(result.scaling))
    logged = {text for run in result.runs if (text := run.text("submission_division"))}
    if place.division and logged and logged != {place.division.lower()}:
        described, named = escape(place.division), escape(", ".join(sorted(logged)))
        yield breach(result, None, "M2.division", described=described, logged=named)
    of_power = find_power_problems(result.folder)
    broken = [run for run in result.runs if run.path.stem in of_power or is_broken(run, place)]
    allowed = judged_by.runs.drop_slowest
    if len(broken) > allowed and any(run.converged for run in broken):  # else T17 says it
        names = ", ".join(escape(run.path.name) for run in broken[:NAMED_MAX])
        more = ", …" if len(broken) > NAMED_MAX else ""
        yield breach(
            result, None, "M2.too_many_broken", broken=len(broken), runs=runs, allowed=allowed,
            names=names + more,
        )  # fmt: skip


@rule("M3", Needs.RESULT)
def check_convergence(
    result: ResultLogs, judged_by: Definition | RoundBenchmark, place: Place
) -> Iterator[Finding]:
    """Check that a closed result does not need fewer epochs than the reference may (M3)."""
    sizes = {format_value(run.value(BATCH_SIZE)) for run in result.runs}
    if len(sizes) > 1 and place.in_result and _find_reference(result, judged_by, place):
        yield breach(result, None, "M3.batch_sizes", got=escape(", ".join(sorted(sizes))))
    found = compare_with_mlcommons(result, judged_by, place)
    if found and found.by_hull:
        yield breach(
            result, None, "M3.hull", verdict=found.verdict, factor=found.factor,
            by_hull=found.by_hull.verdict, hull_factor=found.by_hull.factor,
        )  # fmt: skip
    if found is None or found.verdict == "pass":
        return
    size, verdict = found.batch_size, found.verdict
    if RCP_BYPASS in result.folder.bypassed:
        why, needed = _VERDICTS[verdict], found.mean
        yield breach(result, None, "M3.bypassed", verdict=why, batch_size=size, needed=needed)
    elif verdict == "missing point":
        yield breach(result, None, "M3.missing_point", batch_size=size)
    elif found.point:
        yield breach(
            result, None, "M3.too_fast", batch_size=size, least=found.point.least,
            mean=found.point.mean, needed=found.mean, p_value=found.p_value or 0.0,
        )  # fmt: skip


_VERDICTS = {
    "fail": "the result reaches its target too early",
    "missing point": "there are no reference convergence points",
}
RCP_BYPASS = "rcp-bypass"  # in package_checker_params


def compare_with_mlcommons(
    result: ResultLogs, judged_by: Definition | RoundBenchmark, place: Place
) -> Convergence | None:
    """Compare a result with the reference's runs; None where M3 does not apply.

    It does not in the open division, where mlcommons has no points, and where other rules report
    runs that are missing, did not converge or have different batch sizes.
    """
    if not place.in_result:
        return None
    rule_set, runs = rounds.load(place.round).rule_set, result.runs
    reference = _find_reference(result, judged_by, place)
    sizes = {run.value(BATCH_SIZE) for run in runs if is_integer(run.value(BATCH_SIZE))}
    # epochs or samples to the target, with three digits as mlcommons counts them
    counts = [round(run.progress[0], 3) if run.progress else math.inf for run in runs]
    is_whole = _has_enough(result, judged_by) and len(sizes) == 1
    missed = counts.count(math.inf)
    if not (is_whole and reference) or missed > judged_by.runs.drop_slowest:
        return None
    forgiven = FORGIVEN.get(judged_by.name, 0.0) if rule_set and float(rule_set.version) >= 5 else 0
    return mlcommons.compare(counts, sizes.pop(), reference, judged_by.runs, forgiven)


def _find_reference(
    result: ResultLogs, judged_by: Definition | RoundBenchmark, place: Place
) -> Mapping[int, Sequence[float]]:
    """Return the runs of the reference by batch size; empty in the open division."""
    rule_set = rounds.load(place.round).rule_set
    is_closed = bool(result.runs) and find_division(result.runs[0], place) == "closed"
    return rule_set.read_reference_runs(judged_by.name) if rule_set and is_closed else {}


FORGIVEN = {"llama31_405b": 46_080.0}  # samples between two evaluations, since v5.0


def _has_enough(result: ResultLogs, judged_by: Definition | RoundBenchmark) -> bool:
    """Return whether a result has as many runs as are required; weak scaling may have more."""
    runs, required = len(result.runs), judged_by.runs.required
    return runs == required or (runs > required and result.folder.scale == "weak")


NAMED_MAX = 5  # logs that break rules, of one result


def is_broken(run: RunLog, place: Place) -> bool:
    """Return whether mlcommons' checker refuses a log."""
    found = list_breaches(run, place)
    return run.has_lost_records or run.is_foreign or any(each.kind != "equal" for each in found)
