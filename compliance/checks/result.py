"""T15 to T19: what the logs of one result must be to each other."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from compliance.checks.identity import division_of, has_digest_of
from compliance.checks.registry import Needs, Place, breach, rule
from compliance.finding import Finding, shown
from compliance.runlog import RunLog
from rules.definition import Definition
from rules.events import STATUS_ABORTED, is_integer
from rules.rounds import Severity
from rules.seeds import derived_seed


@rule("T15", Needs.RESULT)
def seeds(runs: Sequence[RunLog], definition: Definition, place: Place) -> Iterator[Finding]:
    """No two runs share a seed, and a seed called derived is the derived one."""
    by_seed: dict[int, RunLog] = {}
    for run in runs:
        event = run.first("seed")
        if event is None or not is_integer(event.value):
            continue
        not_derived = _not_derived(run, definition)
        if not_derived:
            yield not_derived
        elif event.value in by_seed:
            yield breach(
                run.path,
                event.line,
                f"seed {event.value} is also that of {by_seed[event.value].path.name}",
                expected="a seed of its own for each run",
                hint="run again with another seed; by default `cepheid run` derives one per run",
            )
        by_seed.setdefault(event.value, run)


def _not_derived(run: RunLog, definition: Definition) -> Finding | None:
    """A breach where the log says ``origin: derived`` and the seed is another one."""
    event = run.all("seed")[0]
    system, code_digest = run.text("submission_platform"), run.text("code_digest")
    if event.metadata.get("origin") != "derived" or run.index is None:
        return None
    if system is None or code_digest is None or not has_digest_of(run, definition):
        return None  # T2's and T14's
    expected = derived_seed(definition.digest, system, code_digest, run.index)
    if event.value == expected:
        return None
    of_run = [
        index
        for index in range(definition.runs.required)
        if event.value == derived_seed(definition.digest, system, code_digest, index)
    ]
    return breach(
        run.path,
        event.line,
        "the seed is called derived, but it is not the derived one of this run",
        expected=f"{expected}, which follows from definition, system, code and run {run.index}",
        got=f"{event.value}" + (f", the seed of run {of_run[0]}" if of_run else ""),
        hint="do not rename logs; where the seed was chosen, log it with metadata.origin given",
    )


@rule("T16", Needs.RESULT)
def number_of_runs(
    runs: Sequence[RunLog], definition: Definition, place: Place
) -> Iterator[Finding]:
    """As many logs as the definition requires, numbered from 0."""
    if not place.in_result:
        return
    folder, required = runs[0].path.parent, definition.runs.required
    indices = sorted(run.index for run in runs if run.index is not None)
    gaps = sorted(set(range(len(indices))) - set(indices))
    if gaps:
        yield breach(
            folder,
            None,
            f"result_{gaps[0]}.txt is missing",
            expected=f"logs numbered from result_0.txt to result_{len(indices) - 1}.txt",
            got=f"result_{indices[-1]}.txt as the last one",
            hint="runs are not selected: put every completed run into the result",
        )
    if len(runs) < required:
        yield breach(
            folder,
            None,
            f"provisional: {len(runs)} of {required} runs",
            expected=f"{required} run logs for a score",
            got=str(len(runs)),
            hint="the same `cepheid run` command makes the missing runs",
            severity="error" if place.in_submission else "note",
        )
    elif len(runs) > required:
        yield breach(
            folder,
            None,
            f"{len(runs)} runs where the result holds exactly {required}",
            expected=f"result_0.txt to result_{required - 1}.txt",
            got=str(len(runs)),
            hint=f"a result is the first {required} runs that were started; "
            "move later ones to another folder, and do not choose by their times",
        )


@rule("T17", Needs.RESULT)
def not_converged(
    runs: Sequence[RunLog], definition: Definition, place: Place
) -> Iterator[Finding]:
    """At most `runs.drop.slowest` runs ended aborted; by itself an aborted run is an error."""
    aborted = [run for run in runs if run.status == STATUS_ABORTED]
    allowed = definition.runs.drop_slowest
    severity: Severity = "note" if place.in_result else "error"
    for run in aborted:
        stop = run.all("run_stop")[0]
        reason = stop.metadata.get("reason")
        because = f": {shown(reason)}" if isinstance(reason, str) and reason else ""
        yield breach(
            run.path,
            stop.line,
            f"the run did not converge{because}",
            expected="" if place.in_result else "a run that reaches the targets",
            hint="see what the reason names; the run counts as the slowest run, "
            f"and a result may hold {allowed} such run{'' if allowed == 1 else 's'}",
            severity=severity,
        )
    if place.in_result and len(aborted) > allowed:
        yield breach(
            runs[0].path.parent,
            None,
            f"{len(aborted)} of {len(runs)} runs did not converge",
            expected=f"at most {allowed}",
            got=str(len(aborted)),
            hint="with more of them the result has no score; "
            "tune the hyperparameters, then make all runs again",
        )


_SHARED = (
    "submission_org",
    "submission_platform",
    "submission_benchmark",
    "submission_scale",
    "submission_division",
    "code_digest",
    "data_digest",
    "implementation",
)


@rule("T18", Needs.RESULT)
def sameness(runs: Sequence[RunLog], definition: Definition, place: Place) -> Iterator[Finding]:
    """Runs of a result differ in seed and time alone. The odd ones out are named."""
    closed = division_of(runs[0], place) == "closed"
    tuned = [
        name
        for name, allowed in definition.hyperparameters.items()
        if not (closed and allowed.fixed)  # T12 compares those with the definition
    ]
    for key in (*_SHARED, *tuned):
        if key.startswith("submission_") and place.system is not None:
            continue  # T14 compares those with the folder
        logged = [(run, run.first(key)) for run in runs]
        texts = [_canonical(event.value) if event else None for _, event in logged]
        there = [text for text in texts if text is not None]
        if len(set(there)) < 2:
            continue
        usual, _ = Counter(there).most_common(1)[0]
        reference = logged[texts.index(usual)][0]
        for (run, event), text in zip(logged, texts, strict=True):
            if event is not None and text != usual:
                yield breach(
                    run.path,
                    event.line,
                    f"{key} differs from that of {reference.path.name}",
                    expected=shown(reference.value(key)),
                    got=shown(event.value),
                    hint="make all runs of a result with the same code, data, software and values",
                )


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


@rule("T19", Needs.RESULT)
def copies(runs: Sequence[RunLog], definition: Definition, place: Place) -> Iterator[Finding]:
    """No two logs have the same quality at all evaluations, whatever their times and seeds say."""
    seen: dict[tuple[object, ...], RunLog] = {}
    for run in runs:
        course = tuple(
            (point.samples, *sorted(point.metrics.items())) for point in run.quality_curve
        )
        if not any(point.metrics for point in run.quality_curve):
            continue
        if course in seen:
            yield breach(
                run.path,
                run.quality_curve[0].line,
                f"the quality at every evaluation is that of {seen[course].path.name}",
                expected="other values: another seed gives another course",
                got=f"the same at {len(course)} evaluation{'' if len(course) == 1 else 's'}",
                hint="put the log of each run into the result, and no copy of another; "
                "if these are two runs, check that the seed reaches every generator",
            )
        seen.setdefault(course, run)
