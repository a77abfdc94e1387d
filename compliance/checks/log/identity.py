"""T14, T25 and T27: what a log says that it is, and of its machine, its weights and its data."""

import hashlib
import json
import re
from collections.abc import Iterator
from functools import lru_cache

from cepheid.compliance.checks.registry import (
    DIVISIONS,
    Described,
    Needs,
    Place,
    find_division,
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
from cepheid.rules.events import is_integer
from cepheid.rules.systems import PRECISIONS, find_bound, find_peak, name_precision

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
    if place.described:
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
            run,
            digest_event,
            "T14.definition",
            name=judged_by.name,
            scale=judged_by.scale,
            digest=judged_by.digest,
            logged=format_value(digest_event.value),
        )


def _check_benchmark(run: RunLog, place: Place) -> Iterator[Finding]:
    benchmark, scale = run.first("submission_benchmark"), run.first("submission_scale")
    if benchmark is None or not isinstance(benchmark.value, str):
        return
    names = definition.names(place.round)
    if benchmark.value not in names:
        guess = did_you_mean(benchmark.value[:100], names)
        yield breach(
            run,
            benchmark,
            "T14.benchmark",
            benchmark=format_value(benchmark.value),
            guess=guess,
            names=", ".join(names),
        )
    elif scale is not None and isinstance(scale.value, str):
        scales = definition.scales(benchmark.value, place.round)
        if scale.value not in scales:
            yield breach(
                run,
                scale,
                "T14.scale",
                benchmark=benchmark.value,
                scale=format_value(scale.value),
                guess=did_you_mean(scale.value[:100], scales),
                scales=", ".join(scales),
            )


def _check_folder(run: RunLog, place: Place) -> Iterator[Finding]:
    for key, part in _IDENTITY.items():
        event, expected = run.first(key), getattr(place, part)
        if event is None or expected is None or not isinstance(event.value, str):
            continue
        if event.value == expected:
            continue
        if _is_unknown(key, expected, place) or _is_unknown(key, event.value, place):
            continue  # reported by S1, or above
        by_description = part == "submitter"
        source = "the system description" if by_description else "the folder's name"
        yield breach(
            run,
            event,
            "T14.mismatch",
            case="described" if by_description else "",
            key=key,
            source=source,
            expected=format_value(expected),
            part=part,
        )


def _is_unknown(key: str, value: str, place: Place) -> bool:
    """Return True if another finding already reports that the name does not exist."""
    if key == "submission_benchmark":
        return value not in definition.names(place.round)
    if key == "submission_scale" and place.benchmark in definition.names(place.round):
        return value not in definition.scales(place.benchmark, place.round)
    return key == "submission_division" and value not in DIVISIONS


_ACCELERATORS = re.compile(r"cuda|gpu|tpu|xpu|mps|hpu|npu|rocm|hip|ipu|neuron", re.IGNORECASE)
# torch has a build for each of these; others are driven by a plug-in beside a build for processors.
_WITH_OWN_BUILD = re.compile(r"cuda|gpu|xpu|mps|rocm|hip", re.IGNORECASE)
_PROCESSOR = re.compile(r"cpu(:[0-9]+)?", re.IGNORECASE)
_VERSION = re.compile(r"([A-Za-z][\w-]*)[ =]v?([0-9][\w.]*)")
_PRECISIONS = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"}
_NAME = re.compile(r"[A-Za-z][\w-]*")
_LONGEST_COUNT = 9  # digits


def read_versions(text: str) -> dict[str, str]:
    """Return the versions that a text names, such as torch and 2.13.0 of ``torch 2.13.0+cpu``."""
    return {name.casefold(): version.rstrip(".") for name, version in _VERSION.findall(text[:200])}


def check_machine(run: RunLog, described: Described) -> Iterator[Finding]:
    """Check framework, device and ranks of ``implementation`` against the description (T14)."""
    event = run.first("implementation")
    if event is None or not isinstance(event.value, dict):
        return
    framework, device, ranks = (event.value.get(key) for key in ("framework", "device", "ranks"))
    yield from _check_itself(run, event.value)
    if isinstance(framework, str) and not _agree(framework, described.framework):
        yield _report(run, "framework", framework, format_value(described.framework))
    precision = event.value.get("precision")
    is_closed = run.text("submission_division") == "closed"
    if is_closed and isinstance(precision, str) and not name_precision(precision):
        yield _report(run, "precision", precision, f"one of {', '.join(PRECISIONS)}")
    if isinstance(device, str):
        if _PROCESSOR.fullmatch(device) and described.accelerators:
            yield _report(run, "device", device, f"one of {described.accelerators:,} accelerators")
        if _ACCELERATORS.search(device) and not described.accelerators:
            yield _report(run, "device", device, "a processor, since there is no accelerator")
    fewest, most = described.ranks
    if is_integer(ranks) and not fewest <= ranks <= most:
        expected = f"from {fewest:,} (one on each node) to {most:,}"
        yield _report(run, "ranks", ranks, expected)


def _check_itself(run: RunLog, how: dict[str, object]) -> Iterator[Finding]:
    """Check that what was requested is what ran, and that a build for processors ran on one."""
    framework, device, execution = how.get("framework"), how.get("device"), how.get("execution")
    is_for_processors = isinstance(framework, str) and "+cpu" in framework
    if is_for_processors and isinstance(device, str) and _WITH_OWN_BUILD.search(device):
        yield _report(run, "device", device, "a processor, as the build of the framework has it")
    if isinstance(execution, dict):
        asked, ran = execution.get("precision"), how.get("precision")
        wanted = _PRECISIONS.get(asked) if isinstance(asked, str) else None
        if wanted and ran in _PRECISIONS.values() and ran != wanted:
            yield _report(run, "precision", ran, format_value(wanted))
        threads, used = _count_threads(execution), how.get("threads_per_rank")
        if threads is not None and is_integer(used) and used != threads:
            yield _report(run, "threads_per_rank", used, str(threads))


def _count_threads(execution: dict[str, object]) -> int | None:
    """Return how many threads settings ask for; None if they leave it open.

    Those of generation may make a part of the images on each thread, and each part on one.
    """
    own = execution.get("own")
    parts = own.get("parts_at_once") if isinstance(own, dict) else None
    threads, parts_at_once = map(_read_count, (execution.get("threads"), parts))
    return None if threads is None else max(threads, parts_at_once or 0)


def _read_count(text: object) -> int | None:
    is_count = isinstance(text, str) and text.isdecimal() and len(text) <= _LONGEST_COUNT
    return int(str(text)) if is_count else None


def _report(run: RunLog, field: str, logged: object, expected: str) -> Finding:
    event = run.first("implementation")
    return breach(
        run, event, "T14.machine", field=field, expected=expected, logged=format_value(logged)
    )


@lru_cache(maxsize=1024)  # the logs of a result say the same
def _agree(logged: str, described: str) -> bool:
    """Return True if two texts name a framework in common, with the same version if both do."""
    names = [set(map(str.casefold, _NAME.findall(text[:200]))) for text in (logged, described)]
    versions, others = read_versions(logged), read_versions(described)
    same = versions.keys() & others.keys()
    return bool(names[0] & names[1]) and all(versions[name] == others[name] for name in same)


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
        run,
        event,
        "T14.above_peak",
        case="measured" if peak.basis == "measured" else "",
        peak_tflops=peak.tflops,
        precision=peak.precision,
        basis=peak.basis,
        tflops=peak_share.share * peak.tflops,
        samples_per_second=pace.samples_per_second,
        flops_per_sample=definition.flops_per_sample or 0,
    )


@rule("T27", Needs.DEFINITION)
def check_data_read(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that a run read the data whose digest it logs (T27)."""
    logged, read = run.first("data_digest"), run.first("data_read")
    if read is not None:
        if logged is not None and read.value != logged.value:
            yield breach(
                run,
                read,
                "T27.other_data",
                logged=format_value(logged.value),
                line=logged.line,
                read=format_value(read.value),
            )
        return
    stop = run.first("run_stop")
    if stop is None or not run.converged or not run.is_complete or run.grows:
        return
    # What a log says of itself excuses nothing: all that its records say must be known.
    if digest_records(run) not in rounds.load(place.round).data_not_proven:
        yield breach(run, stop, "T27.missing")
    elif run.index in (0, None):  # once for each result
        yield breach(run, stop, "T27.not_proven")


def digest_records(run: RunLog) -> str:
    """Return the SHA-256 of what the records of a log say, in hexadecimal.

    The text around the records, and the lines of code that wrote them, are left out.
    """
    digest = hashlib.sha256()
    for event in run.events:
        facts = {
            key: value for key, value in event.metadata.items() if key not in ("file", "lineno")
        }
        said = [event.time_ms, event.event_type, event.key, event.value, facts]
        digest.update(json.dumps(said, sort_keys=True).encode())
    return digest.hexdigest()


@rule("T25", Needs.TIMELINE)
def check_weights(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that a closed run uses the weights of the definition, and no others (T25)."""
    if find_division(run, place) == "closed":
        yield from (
            _check_start(run, definition)
            if definition.kind == "train"
            else (_check_generation(run, definition))
        )


def _check_generation(run: RunLog, definition: Definition) -> Iterator[Finding]:
    event, expected = run.first("weights_digest"), definition.model.get("weights_digest")
    if event is None or event.value == expected:
        return
    if expected is None:
        yield breach(run, event, "T25.no_weights", name=definition.name, scale=definition.scale)
        return
    yield breach(
        run, event, "T25.other_weights", expected=format_value(expected), name=definition.name
    )


def _check_start(run: RunLog, definition: Definition) -> Iterator[Finding]:
    """Check the weights from which a training starts; most definitions have none."""
    event, stop = run.first("weights_digest"), run.first("init_stop")
    choices = {name: rule.default for name, rule in definition.hyperparameters.items()}
    choices |= {event.key: event.value for event in run.events if event.key in choices}
    given = definition.find_given_weights(choices)
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
