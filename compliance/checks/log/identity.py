"""T14, T25 and T27: what a log says that it is, and of its machine, its weights and its data."""

import re
from collections.abc import Iterator

from cepheid.compliance.checks.agreement import LogSource, Source, find_disagreements
from cepheid.compliance.checks.registry import (
    DIVISIONS,
    Described,
    Needs,
    Place,
    find_division,
    find_given_weights,
    find_log_definition,
    has_digest_of,
    rule,
)
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.summary import measure_pace
from cepheid.rules import definition, rounds
from cepheid.rules.definition import Definition
from cepheid.rules.digests import UNCONFIRMED
from cepheid.rules.errors import did_you_mean
from cepheid.rules.systems import find_bound, find_peak

_IDENTITY = {
    "submission_org": "submitter",
    "submission_platform": "system",
    "submission_benchmark": "benchmark",
    "submission_scale": "scale",
    "submission_division": "division",
}


@rule("T14", Needs.RECORDS)
def check_identity(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check round, submitter, system, benchmark, scale, division and definition (T14)."""
    yield from _check_benchmark(run, place)
    yield from _check_folder(run, place)
    yield from check_machine(run, place.described)
    round_event = run.first("submission_round")
    accepted = (place.round, *rounds.load(place.round).carries)
    if round_event and isinstance(round_event.value, str) and round_event.value not in accepted:
        yield breach(
            run, round_event, "T14.round", round=place.round, logged=format_value(round_event.value)
        )
    judged_by = find_log_definition(run, place)
    digest_event = run.first("definition_digest")
    if judged_by and place.described and has_digest_of(run, judged_by):
        yield from check_peak(run, place.described, judged_by)
    if judged_by and digest_event and not has_digest_of(run, judged_by):
        yield breach(
            run, digest_event, "T14.definition", name=judged_by.name, scale=judged_by.scale,
            digest=judged_by.digest, logged=format_value(digest_event.value),
        )  # fmt: skip


def _check_benchmark(run: RunLog, place: Place) -> Iterator[Finding]:
    benchmark, scale = run.first("submission_benchmark"), run.first("submission_scale")
    if benchmark is None or not isinstance(benchmark.value, str):
        return
    names = definition.names(place.round)
    if benchmark.value not in names:
        guess = did_you_mean(benchmark.value[:100], names)
        yield breach(
            run, benchmark, "T14.benchmark", benchmark=format_value(benchmark.value), guess=guess,
            names=", ".join(names),
        )  # fmt: skip
    elif scale is not None and isinstance(scale.value, str):
        scales = definition.scales(benchmark.value, place.round)
        if scale.value not in scales:
            yield breach(
                run, scale, "T14.scale", benchmark=benchmark.value, scale=format_value(scale.value),
                guess=did_you_mean(scale.value[:100], scales), scales=", ".join(scales),
            )  # fmt: skip


def _check_folder(run: RunLog, place: Place) -> Iterator[Finding]:
    for key, part in _IDENTITY.items():
        event, expected = run.first(key), getattr(place, part)
        if event is None or expected in (None, event.value) or not isinstance(event.value, str):
            continue
        if _is_unknown(key, expected, place) or _is_unknown(key, event.value, place):
            continue  # reported by S1, or above
        by_description = part == "submitter"
        source = "the system description" if by_description else "the folder's name"
        yield breach(
            run, event, "T14.mismatch", case="described" if by_description else "", key=key,
            source=source, expected=format_value(expected), part=part,
        )  # fmt: skip


def _is_unknown(key: str, value: str, place: Place) -> bool:
    """Return True if another finding already reports that the name does not exist."""
    if key == "submission_benchmark":
        return value not in definition.names(place.round)
    if key == "submission_scale" and place.benchmark in definition.names(place.round):
        return value not in definition.scales(place.benchmark, place.round)
    return key == "submission_division" and value not in DIVISIONS


def check_machine(run: RunLog, described: Described | None) -> Iterator[Finding]:
    """Check what a log says of its machine, against the description and in itself (T14)."""
    sources: dict[str, Source] = {"log": LogSource(run)}
    if described:
        sources["system"] = described.source
    for one in find_disagreements("log", **sources):
        yield breach(
            run, one.line, "T14.machine", case="unlikely" if one.is_warning else "",
            field=str(one.key), others=one.others, expected=one.expected,
            logged=format_value(one.said),
        )  # fmt: skip


def check_peak(run: RunLog, described: Described, definition: Definition) -> Iterator[Finding]:
    """Check that the pace of a closed run is below the peak of its system (T14).

    Where none is described, a generous bound counts, by cores and accelerators.

    A measured peak may be too low, if the machine was busy; so this is a warning then.
    """
    pace = measure_pace(run)
    if pace is None or run.text("submission_division") != "closed":
        return
    peaks = [find(described.system, pace.precision) for find in (find_bound, find_peak)]
    shares = [pace.compute_share(definition, peak) for peak in peaks]
    peak_share = next((share for share in shares if share and share.share > 1), None)
    if peak_share is None:
        return
    event, peak = run.first("implementation"), peak_share.peak
    yield breach(
        run, event, "T14.above_peak", case="measured" if peak.basis == "measured" else "",
        peak_tflops=peak.tflops, precision=peak.precision, basis=peak.basis,
        tflops=peak_share.share * peak.tflops, samples_per_second=pace.samples_per_second,
        flops_per_sample=definition.flops_per_sample or 0,
    )  # fmt: skip


@rule("T27", Needs.DEFINITION)
def check_data_read(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that a run read the data whose digest it logs (T27)."""
    logged, read = run.first("data_digest"), run.first("data_read")
    if read is not None:
        if logged is not None and read.value != logged.value:
            yield breach(
                run, read, "T27.other_data", logged=format_value(logged.value), line=logged.line,
                read=format_value(read.value),
            )  # fmt: skip
        return
    if run.converged and run.is_complete and not run.grows:
        yield breach(run, run.first("run_stop"), "T27.missing")


@rule("T25", Needs.TIMELINE)
def check_weights(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that a closed run uses the weights of the definition, and no others (T25)."""
    if find_division(run, place) == "closed":
        check = _check_start if definition.kind == "train" else _check_generation
        yield from check(run, definition)


def _check_generation(run: RunLog, definition: Definition) -> Iterator[Finding]:
    event, expected = run.first("weights_digest"), definition.model.get("weights_digest")
    name = definition.name
    if event is None or event.value == expected:
        return
    if expected is None:
        yield breach(run, event, "T25.no_weights", name=name, scale=definition.scale)
    else:
        yield breach(run, event, "T25.other_weights", expected=format_value(expected), name=name)


def _check_start(run: RunLog, definition: Definition) -> Iterator[Finding]:
    """Check the weights from which a training starts; most definitions have none."""
    event, stop = run.first("weights_digest"), run.first("init_stop")
    given = find_given_weights(run, definition)
    if given is None and event is not None:
        yield breach(run, event, "T25.not_given", name=definition.name, scale=definition.scale)
    elif given is not None and event is None and stop is not None:
        yield breach(run, stop, "T25.missing", file=given["file"], digest=given["digest"])
    elif given is not None and event is not None:
        if not _is_digest(event.value, given["digest"]):
            yield breach(run, event, "T25.other_start", file=given["file"], digest=given["digest"])
        elif given["digest"] == UNCONFIRMED and run.index in (0, None):  # once for each result
            yield breach(run, event, "T25.unconfirmed", file=given["file"])


def _is_digest(value: object, expected: str) -> bool:
    """Return whether ``value`` is the SHA-256 that a definition expects, or any one if it does not.

    A frozen definition of an earlier round may have the first digits only.
    """
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        return False
    return expected == UNCONFIRMED or value.startswith(expected)
