"""T14: what a log says of the machine is what the system description says, and possible on it."""

import re
from collections.abc import Iterator
from functools import lru_cache

from cepheid.compliance.checks.registry import Described
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.course import measure_pace
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.definition import Definition
from cepheid.rules.devices import find_peak
from cepheid.rules.events import is_integer

_ACCELERATORS = re.compile(r"cuda|gpu|tpu|xpu|mps|hpu|npu|rocm|hip|ipu|neuron", re.IGNORECASE)
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
    if is_for_processors and isinstance(device, str) and _ACCELERATORS.search(device):
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

    A measured peak may be too low, if the machine was busy; so this is a warning then.
    """
    pace = measure_pace(run)
    if pace is None or run.text("submission_division") != "closed":
        return
    found = pace.compute_share(definition, find_peak(described.system, pace.precision))
    if found is None or found.share <= 1:
        return
    event, peak = run.first("implementation"), found.peak
    yield breach(
        run,
        event,
        "T14.above_peak",
        case="" if peak.basis == "datasheet" else "measured",
        peak_tflops=peak.tflops,
        precision=peak.precision,
        basis=peak.basis,
        tflops=found.share * peak.tflops,
        samples_per_second=pace.samples_per_second,
        flops_per_sample=definition.flops_per_sample or 0,
    )
