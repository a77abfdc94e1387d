"""Ranks, and the numbers of a result as people read them: score, time, interval, energy."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence

from cepheid.compliance.finding import escape
from cepheid.compliance.read.summary import PARALLEL, PRECISIONS
from cepheid.compliance.score.comparison import Rank, Ratio, format_ratio, rank_levels
from cepheid.compliance.score.kinds import BenchmarkKind, Unit
from cepheid.leaderboard.rows.entry import Entry


def rank_rows(members: Sequence[Entry]) -> list[tuple[Entry, Rank | None]]:
    """Return each entry with its rank among those with a score, or None; the fastest are first."""
    levels = [entry.level for entry in members if entry.is_ranked and entry.level]
    ranks = iter(rank_levels(levels))
    return [(entry, next(ranks) if entry.is_ranked and entry.level else None) for entry in members]


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
    means = (
        (e.kind, e.main.mean if e.main else e.standing.so_far.get(e.kind.ranked_by, 0))
        for e in entries
    )
    known = [(kind, math.log(mean)) for kind, mean in means if mean > 0]
    if not known:
        return None
    ends = [value for _, value in known]
    return known[0][0].choose_unit(math.exp((min(ends) + max(ends)) / 2))


def name_unit(unit: Unit) -> str:
    """Return the name of a unit in full, for axes and headings: ``seconds``."""
    return {"s": "seconds", "min": "minutes"}.get(unit.name, unit.name)


def format_range(entry: Entry, unit: Unit | None = None) -> str:
    """Format the 95% interval of what ranks the result, in the unit of its mean by default."""
    main = entry.main
    if main is None or main.low is None or main.high is None:
        return ""
    unit = unit or entry.kind.choose_unit(main.mean)
    return format_ends(main.mean, main.low, main.high, unit)


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


def format_ratio_interval(ratio: Ratio, times: str = "×") -> str:
    """Return a ratio with its interval, as in ``1.80× (1.70–1.90)``; 1 is what others refer to."""
    if not ratio.runs:
        return "1 (reference)"
    if ratio.low is None or ratio.high is None:
        return f"{format_ratio(ratio.value)}{times}"
    ends = f"{format_ratio(ratio.low)}–{format_ratio(ratio.high)}"
    return f"{format_ratio(ratio.value)}{times} ({ends})"


def describe_basis(entry: Entry) -> str:
    """Say what a number of our own rounds rests on, and which difference it can show.

    For example ``charged with its own samples, 5 runs in one sitting, resolution 6.2%``.
    """
    score = entry.standing.score
    if score is None or entry.is_of_mlperf:
        return ""
    if not score.is_score:
        return f"only a time, no score: {score.why}"
    level = score.level
    resolution = level.resolution if level else None
    parts = (
        "charged with its own samples" if level and level.is_charged else "",
        score.basis,
        "seeds given" if "given" in entry.counts.seeds else "",
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


def describe_precision(entry: Entry) -> str:
    """Say in which precisions logs of MLPerf computed: ``linear nvfp4, attn fp8``."""
    said = _list_setup(entry, PRECISIONS)
    values = set(said.values())
    if len(values) > 1:
        return ", ".join(f"{part} {value}" for part, value in said.items())
    return next(iter(values), "")


def describe_parallelism(entry: Entry) -> str:
    """Say over how many devices logs of MLPerf split a model: ``TP8 PP4``."""
    said = _list_setup(entry, PARALLEL)
    split = " ".join(f"{kind}{value}" for kind, value in said.items() if value != "1")
    return split or ("none" if said else "")


def _list_setup(entry: Entry, keys: Mapping[str, str]) -> dict[str, str]:
    runs = entry.judged.runs
    values = {name: {run.setup.get(key) for run in runs} for key, name in keys.items()}
    alike = {name: said.pop() for name, said in values.items() if len(said) == 1}
    return {name: escape(str(one)) for name, one in alike.items() if one is not None}


def format_value(kind: BenchmarkKind, value: float, unit: Unit | None = None) -> str:
    """Format a value of the metric that ranks results, in a unit that suits it: ``18.1 s``."""
    unit = unit or kind.choose_unit(value)
    return f"{unit.format(value)} {unit.name}"


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
