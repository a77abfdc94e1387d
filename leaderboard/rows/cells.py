"""The numbers of a result as people read them: score, time, interval, what they rest on, energy."""

from collections.abc import Mapping

from cepheid.compliance.finding import escape
from cepheid.compliance.read.summary import PARALLEL, PRECISIONS
from cepheid.compliance.score.kinds import MINUTES, BenchmarkKind, format_number
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


def format_score(entry: Entry) -> str:
    """Format the score, empty for a result that has a time only."""
    score = entry.standing.score
    return entry.kind.format(score.main.mean) if score and score.is_score else ""


def format_time(entry: Entry) -> str:
    """Format the time to train; a provisional average stands in brackets."""
    time, so_far = find_time(entry), entry.standing.so_far.get(MINUTES)
    if time:
        return entry.kind.format(time.mean)
    return "" if so_far is None else f"({entry.kind.format(so_far)})"


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


def format_interval(entry: Entry) -> str:
    """Format the 95% interval of what ranks the result."""
    score = entry.standing.score.main if entry.standing.score else None
    if score is None or score.low is None or score.high is None:
        return ""
    return f"{entry.kind.format(score.low)} to {entry.kind.format(score.high)}"


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


def format_value(kind: BenchmarkKind, value: float) -> str:
    """Format a value of the metric that ranks results, with a unit that suits it: ``18.1 s``."""
    unit = kind.choose_unit(value)
    return f"{unit.format(value)} {unit.name}"


def format_range(entry: Entry) -> str:
    """Format the 95% interval of what ranks the result, in the unit of its mean."""
    score = entry.standing.score.main if entry.standing.score else None
    if score is None or score.low is None or score.high is None:
        return ""
    unit = entry.kind.choose_unit(score.mean)
    return f"{unit.format(score.low)} to {unit.format(score.high)}"
