"""Numbers and short phrases of a row as people read them."""

from collections.abc import Sequence

from compliance.leaderboard.row import RANKED_BY, Row
from rules.generation import METRICS


def rcp_cell(row: Row) -> str:
    """The verdict of rule T21 and the factor, e.g. ``pass 1.02``.

    Empty where nothing was compared, or something stands against the result.
    """
    if row.verdict == "rejected" or row.rcp_verdict in ("", "not measured"):
        return ""
    return row.rcp_verdict + (f" {row.rcp_factor:.2f}" if row.rcp_factor else "")


def generation_cells(row: Row) -> list[str]:
    """The scores of rule T26; in brackets those of a provisional result so far."""
    if row.provisional_generation:
        so_far = row.provisional_generation
        return [f"({digits(so_far[metric.name])})" for metric in METRICS]
    found = [row.generation.get(metric.name) for metric in METRICS]
    return [digits(estimate.mean) if estimate else "" for estimate in found]


def generation_interval(row: Row) -> str:
    """The 95% interval of what results are ranked by."""
    found = row.generation.get(RANKED_BY)
    if found is None or found.low is None or found.high is None:
        return ""
    return f"{digits(found.low)} to {digits(found.high)}"


def digits(value: float) -> str:
    """Three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def minutes(value: float) -> str:
    """Minutes to three or four digits."""
    return f"{value:,.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def interval(row: Row) -> str:
    """The 95% interval of a score."""
    if row.score_low is None or row.score_high is None:
        return ""
    return f"{minutes(row.score_low)} to {minutes(row.score_high)}"


def energy(row: Row) -> str:
    """The energy of a run and what was not measured: ``1.23 kJ a run, not measured: nothing``."""
    kilojoules = (row.energy_joules or 0.0) / 1000
    return f"{kilojoules:,.3g} kJ a run, not measured: {row.not_measured}"


def update_cell(row: Row) -> str:
    """How many times as long as a plain update one takes, e.g. ``1.89×``; empty where nobody
    measures plain ones."""
    return "" if row.update_time_ratio is None else f"{row.update_time_ratio:.2f}×"


def ranked(members: Sequence[Row]) -> list[tuple[Row, int | None]]:
    """Each row with its rank among those with a score, or None."""
    scored = [row for row in members if row.has_score]
    return [(row, scored.index(row) + 1 if row in scored else None) for row in members]
