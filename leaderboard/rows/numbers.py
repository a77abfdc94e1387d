"""The cells of a row as people read them: numbers and short phrases."""

from collections.abc import Sequence

from cepheid.compliance.score.comparison import Rank, rank_levels
from cepheid.compliance.score.kinds import BenchmarkKind, format_number
from cepheid.leaderboard.rows.entry import Entry
from cepheid.rules.generation import METRICS


def format_reference(entry: Entry) -> str:
    """Format the verdict of rule T21 and the factor, e.g. ``pass 1.02``.

    Empty where nothing was compared, or errors stand against the result.
    """
    verdict, factor = entry.reference.verdict, entry.reference.factor
    if entry.standing.is_rejected or verdict in ("", "not measured"):
        return ""
    return verdict + (f" {factor:.2f}" if factor else "")


def format_score(entry: Entry) -> str:
    """Format the score; a provisional average stands in brackets."""
    kind, standing = entry.kind, entry.standing
    if standing.score:
        return kind.format(standing.score.main.mean)
    so_far = standing.so_far.get(kind.ranked_by)
    return "" if so_far is None else f"({kind.format(so_far)})"


def format_generation(entry: Entry) -> list[str]:
    """Format the scores of rule T26; those of a provisional result stand in brackets."""
    standing = entry.standing
    if standing.so_far:
        return [f"({format_number(standing.so_far[metric.name])})" for metric in METRICS]
    estimates = standing.score.estimates if standing.score else {}
    found = [estimates.get(metric.name) for metric in METRICS]
    return [format_number(estimate.mean) if estimate else "" for estimate in found]


def format_interval(entry: Entry) -> str:
    """Format the 95% interval of what ranks the result."""
    found = entry.standing.score.main if entry.standing.score else None
    if found is None or found.low is None or found.high is None:
        return ""
    return f"{entry.kind.format(found.low)} to {entry.kind.format(found.high)}"


def format_energy(entry: Entry) -> str:
    """Format the energy of a run: ``1.23 kJ a run, not measured: nothing``; empty without it."""
    if entry.energy is None or entry.kilojoules is None:
        return ""
    return f"{entry.kilojoules:,.3g} kJ a run, not measured: {entry.energy.not_measured}"


def format_update(entry: Entry) -> str:
    """Format how many times as long as a plain update one takes, e.g. ``1.89×``.

    Empty where no plain update was measured.
    """
    ratio = entry.progress.update_time_ratio
    return "" if ratio is None else f"{ratio:.2f}×"


def rank_rows(members: Sequence[Entry]) -> list[tuple[Entry, Rank | None]]:
    """Return each entry with its rank among those with a score, or None; the fastest are first."""
    levels = [entry.level for entry in members if entry.level is not None]
    ranks = iter(rank_levels(levels))
    return [(entry, None if entry.level is None else next(ranks)) for entry in members]


def format_value(kind: BenchmarkKind, value: float) -> str:
    """Format a value of the metric that ranks results, with a unit that suits it: ``18.1 s``."""
    unit = kind.choose_unit(value)
    return f"{unit.format(value)} {unit.name}"


def format_range(entry: Entry) -> str:
    """Format the 95% interval of what ranks the result, in the unit of its mean."""
    found = entry.standing.score.main if entry.standing.score else None
    if found is None or found.low is None or found.high is None:
        return ""
    unit = entry.kind.choose_unit(found.mean)
    return f"{unit.format(found.low)} to {unit.format(found.high)}"
