"""The numbers of a result as people read them: score, time, interval, what they rest on, energy."""

import math
import shlex
from collections.abc import Iterable, Mapping

from cepheid.compliance.finding import escape
from cepheid.compliance.read.summary import PARALLEL, PRECISIONS
from cepheid.compliance.score.kinds import MINUTES, BenchmarkKind, Unit, format_number
from cepheid.compliance.score.trimmed import Estimate
from cepheid.leaderboard.rows.entry import Entry
from cepheid.rules.metrics import METRICS


def format_reference(entry: Entry) -> str:
    """Format the verdict of rule T21 and the factor, e.g. ``equal 1.02``.

    Empty where nothing was compared, or errors stand against the result.
    """
    verdict, factor = entry.reference.verdict, entry.reference.factor
    if entry.standing.is_rejected or verdict in ("", "not measured"):
        return ""
    return verdict + (f" {factor:.2f}" if factor else "")


def choose_unit(entries: Iterable[Entry]) -> Unit | None:
    """Choose the unit in which all numbers of a table are read; None without any."""
    known = [(entry.kind, value) for entry in entries if (value := _find_value(entry)) > 0]
    if not known:
        return None
    ends = [math.log(value) for _, value in known]
    return known[0][0].choose_unit(math.exp((min(ends) + max(ends)) / 2))


def _find_value(entry: Entry) -> float:
    """Return what ranks a result, or its mean so far; 0 without any."""
    score = entry.standing.score
    return score.main.mean if score else entry.standing.so_far.get(entry.kind.ranked_by, 0)


def format_score(entry: Entry, unit: Unit) -> str:
    """Format the score, empty for a result that has a time only."""
    score = entry.standing.score
    if score is None or not score.is_score:
        return ""
    return entry.kind.format(score.main.mean * unit.factor)


def format_time(entry: Entry, unit: Unit) -> str:
    """Format the time to train; a provisional average stands in brackets."""
    time, so_far = find_time(entry), entry.standing.so_far.get(MINUTES)
    if time:
        return entry.kind.format(time.mean * unit.factor)
    return "" if so_far is None else f"({entry.kind.format(so_far * unit.factor)})"


def find_time(entry: Entry) -> Estimate | None:
    """Return the time to train; None without any number, and for a benchmark that generates."""
    score = entry.standing.score
    return score.estimates.get(MINUTES) if score else None


def format_generation(entry: Entry) -> list[str]:
    """Format the scores of rule T26; those of a provisional result stand in brackets."""
    standing = entry.standing
    if standing.so_far:
        known = [standing.so_far.get(metric.name) for metric in METRICS]
        return ["" if value is None else f"({format_number(value)})" for value in known]
    estimates = standing.score.estimates if standing.score else {}
    scores = [estimates.get(metric.name) for metric in METRICS]
    return [format_number(estimate.mean) if estimate else "" for estimate in scores]


def format_interval(entry: Entry, unit: Unit) -> str:
    """Format the 95% interval of what ranks the result, in the unit of its table."""
    score = entry.standing.score.main if entry.standing.score else None
    if score is None or score.low is None or score.high is None:
        return ""
    return format_ends(score.mean, score.low, score.high, unit)


def format_ends(mean: float, low: float, high: float, unit: Unit) -> str:
    """Format an interval with so many decimals that its width is seen: ``12.07 to 12.12``.

    It has at least the decimals of the mean.
    """
    mean, low, high = (value * unit.factor for value in (mean, low, high))
    least = max(0, 2 - math.floor(math.log10(abs(mean)))) if mean else 2
    width = high - low
    decimals = max(least, math.ceil(0.5 - math.log10(width))) if width > 0 else least
    decimals = min(decimals, least + 3)
    return f"{low:,.{decimals}f} to {high:,.{decimals}f}"


def describe_basis(entry: Entry) -> str:
    """Say what a number of our own rounds rests on, and which difference it can show.

    For example ``charged with its own samples, 5 runs in one sitting, resolution 6.2%``.
    """
    score = entry.standing.score
    if score is None or entry.round_kind.has_verdicts:
        return ""
    if not score.is_score:
        return f"only a time, no score: {score.why}"
    level = score.level
    resolution = level.resolution if level else None
    parts = (
        "charged with its own samples" if level and level.is_charged else "",
        score.basis,
        f"runs begun: {entry.begun}" if entry.begun.runs > entry.counts.made else "",
        "too few runs for an interval"
        if resolution is None
        else f"resolution {format_percent(resolution)}",
        "" if entry.reference.is_interpolated else "the reference's curves were not kept",
    )
    return ", ".join(filter(None, parts))


def format_percent(share: float) -> str:
    """Format a share with two digits: ``6.2%``, ``41%``."""
    return f"{100 * share:.1f}%" if share < 0.0995 else f"{100 * share:,.0f}%"


def format_energy(entry: Entry) -> str:
    """Format the energy of a run: ``1.23 kJ a run, not measured: nothing``; empty without it."""
    if entry.energy is None or entry.kilojoules is None:
        return ""
    missing = f", not measured: {entry.energy.not_measured}" if entry.energy.not_measured else ""
    return f"{format_number(entry.kilojoules)} kJ a run{missing}"


def find_batch(entry: Entry) -> int | None:
    """Return the global batch size, if all runs have the same."""
    sizes = {run.batch_size for run in entry.judged.runs}
    return sizes.pop() if len(sizes) == 1 else None


def describe_precision(entry: Entry) -> str:
    """Say in which precisions logs of MLPerf computed: ``linear nvfp4, attn fp8``."""
    said = _list_setup(entry, PRECISIONS)
    values = set(said.values())
    return (
        ", ".join(f"{part} {value}" for part, value in said.items())
        if len(values) > 1
        else (next(iter(values), ""))
    )


def describe_parallelism(entry: Entry) -> str:
    """Say over how many devices logs of MLPerf split a model: ``TP8 PP4``."""
    said = _list_setup(entry, PARALLEL)
    return " ".join(f"{kind}{value}" for kind, value in said.items() if value != "1") or (
        "none" if said else ""
    )


def _list_setup(entry: Entry, keys: Mapping[str, str]) -> dict[str, str]:
    """Return what all logs say of some keys, by their short names."""
    runs = entry.judged.runs
    values = {name: {run.setup.get(key) for run in runs} for key, name in keys.items()}
    alike = {name: said.pop() for name, said in values.items() if len(said) == 1}
    return {name: escape(str(one)) for name, one in alike.items() if one is not None}


def format_update(entry: Entry) -> str:
    """Format how many times as long as a plain update one takes, e.g. ``1.89×``.

    Empty where no plain update was measured.
    """
    ratio = entry.progress.update_time_ratio
    return "" if ratio is None else f"{ratio:.2f}×"


def format_value(kind: BenchmarkKind, value: float, unit: Unit | None = None) -> str:
    """Format a value of the metric that ranks results, in a unit that suits it: ``18.1 s``."""
    unit = unit or kind.choose_unit(value)
    return f"{unit.format(value)} {unit.name}"


def format_range(entry: Entry, unit: Unit | None = None) -> str:
    """Format the 95% interval of what ranks the result, in the unit of its mean by default."""
    score = entry.standing.score
    return format_interval(entry, unit or entry.kind.choose_unit(score.main.mean)) if score else ""


def suggest_command(entry: Entry) -> str:
    """Return the command that makes a score of a result with too few runs; else nothing.

    It is known for the reference's code alone: whoever runs other code knows how.
    """
    folder, names, runs = entry.judged.folder.path, entry.names, entry.judged.runs
    is_ours = all(run.text("code_digest") and run.code is None for run in runs)
    if not (entry.standing.so_far and is_ours and names.scale) or folder.is_absolute():
        return ""
    more = "" if names.division == "closed" else f" --division {names.division}"
    more += " --framework keras" if "keras" in entry.hardware.framework.casefold() else ""
    output = escape(shlex.quote(str(folder.parents[2])))
    return f"cepheid run {names.benchmark} --scale {names.scale}{more} --output {output}"
