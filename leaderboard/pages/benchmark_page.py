"""A benchmark at a scale: a summary of its rules, a table for each division, and plots.

Beside scores stands what results need of each device: time, throughput, efficiency, energy.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cepheid.compliance.score import margins
from cepheid.compliance.score.comparison import Rank, Ratio, ratio
from cepheid.compliance.score.kinds import GENERATION, MINUTES, TRAINING
from cepheid.leaderboard.plots import curves, scaling
from cepheid.leaderboard.plots.aggregate import format_ratio_interval
from cepheid.leaderboard.plots.plot import Plot, Table
from cepheid.leaderboard.plots.scaling import Family
from cepheid.leaderboard.rows.cells import (
    choose_unit,
    format_percent,
    format_reference,
    format_value,
)
from cepheid.leaderboard.rows.entry import Entry, group_entries
from cepheid.leaderboard.rows.tables import rank_rows
from cepheid.leaderboard.site.records import describe_levels
from cepheid.leaderboard.site.reported import load_sets
from cepheid.leaderboard.site.view import (
    ScoreCell,
    Site,
    find_half_width,
    make_score_cell,
    render,
)
from cepheid.rules import evidence
from cepheid.rules.definition import Definition
from cepheid.rules.metrics import METRICS
from cepheid.rules.systems import PeakShare


@dataclass(frozen=True)
class DeviceLine:
    """A result with a score. Numbers are None where the logs do not tell.

    ``efficiency`` is the speed-up over the fastest of the smallest systems with this device,
    divided by how many times as many devices there are.
    """

    entry: Entry
    name: str
    score_name: str
    score: float
    score_text: str
    minutes: float | None
    device_minutes: float | None
    throughput_name: str
    throughput: float | None
    efficiency: float | None
    kilojoules: float | None

    @property
    def peak_share(self) -> PeakShare | None:
        """What share of the system's peak it reached, None where that is not known."""
        return self.entry.peak_share


def measure_devices(entries: Sequence[Entry]) -> Iterator[DeviceLine]:
    """Measure the results with a score, in their order."""
    unit = choose_unit(entries)
    families = {family.label: family for family in scaling.group_families(entries)}
    for entry in entries:
        score = entry.standing.score
        if score is None:
            continue
        trains = entry.kind is TRAINING
        minutes = score.estimates[MINUTES].mean if MINUTES in score.estimates else None
        yield DeviceLine(
            entry=entry,
            name=entry.name,
            score_name="time to train" if trains else "images/s",
            score=minutes if trains and minutes is not None else score.main.mean,
            score_text=format_value(
                entry.kind, minutes if trains and minutes is not None else score.main.mean, unit
            ),
            minutes=minutes if trains else None,
            device_minutes=minutes * entry.devices if trains and minutes is not None else None,
            throughput_name=_name_throughput(entry),
            throughput=_find_throughput(entry, minutes, score.main.mean),
            efficiency=_find_efficiency(
                entry, families.get(entry.hardware.device) if entry.is_scored else None
            ),
            kilojoules=entry.kilojoules,
        )


def _name_throughput(entry: Entry) -> str:
    if entry.kind is not TRAINING:
        return "images/s per device"
    return f"{'epochs/h' if entry.progress.samples is None else 'samples/s'} per device"


def _find_throughput(entry: Entry, minutes: float | None, mean: float) -> float | None:
    """Return what a device does: samples or images a second, or epochs an hour of MLPerf."""
    progress = entry.progress
    if entry.kind is not TRAINING:
        return mean / entry.devices
    if not minutes:
        return None
    if progress.samples is not None:
        return progress.samples / (60 * minutes) / entry.devices
    return None if progress.epochs is None else 60 * progress.epochs / minutes / entry.devices


def _find_efficiency(entry: Entry, family: Family | None) -> float | None:
    """Return the parallel efficiency, None without a score and for one number of devices."""
    if family is None or len(family.best) < 2:
        return None
    return family.find_efficiency(entry.devices, entry.standing.cost)


@dataclass(frozen=True)
class Line:
    """A result in its table. ``ratio`` and ``behind`` compare it with the first of the table."""

    entry: Entry
    rank: Rank | None
    name: str
    colour: int | None
    cell: ScoreCell
    ratio: float | None
    behind: str
    rcp: str


@dataclass(frozen=True)
class Division:
    """The results of a division; ``unranked`` have no score."""

    name: str
    lines: tuple[Line, ...]
    spread_percent: str
    plots: tuple[Plot, ...]
    other_targets: tuple[Table, ...]
    per_device: tuple[DeviceLine, ...]
    unranked: tuple[tuple[Entry, ScoreCell], ...]

    @property
    def progress_unit(self) -> str:
        """What counts the way to the target: epochs in most logs of MLPerf, else samples."""
        has_epochs = any(line.entry.progress.epochs is not None for line in self.lines)
        return "epochs" if has_epochs else "samples"

    @property
    def has_rcp(self) -> bool:
        """Whether anything was compared with the reference."""
        return any(line.rcp for line in self.lines)

    @property
    def has_energy(self) -> bool:
        """Whether any energy was measured."""
        return any(line.kilojoules is not None for line in self.per_device)

    @property
    def has_efficiency(self) -> bool:
        """Whether any family of systems has several sizes."""
        return any(line.efficiency is not None for line in self.per_device)

    @property
    def has_peak_share(self) -> bool:
        """Whether any share of a peak is known."""
        return any(line.peak_share is not None for line in self.per_device)

    @property
    def left_out(self) -> list[str]:
        """What the measurements of energy leave out."""
        energies = (line.entry.energy for line in self.per_device)
        return list(dict.fromkeys(e.not_measured for e in energies if e and e.not_measured))

    @property
    def devices(self) -> list[str]:
        """The devices that have a price."""
        return sorted({line.entry.hardware.device for line in self.per_device})


def make_pages(site: Site) -> Iterator[tuple[str, str]]:
    """Make a page for each benchmark and scale that has a result."""
    known = (entry for entry in site.entries if entry.is_known)
    for page, entries in group_entries(known, lambda entry: entry.benchmark_page).items():
        yield page, _render_page(site, page, entries)


def _render_page(site: Site, page: str, entries: Sequence[Entry]) -> str:
    definition = next((entry.definition for entry in entries if entry.definition), None)
    names = sorted({entry.names.division for entry in entries}, key=lambda n: (n != "closed", n))
    divisions = [
        _make_division(site, name, [entry for entry in entries if entry.names.division == name])
        for name in names
    ]
    row = entries[0]
    return render(
        site,
        "benchmark.html",
        page,
        row=row,
        definition=definition,
        rules=_describe_rules(definition) if definition else [],
        divisions=divisions,
        higher=[t.metric for t in definition.quality if t.better == "higher"] if definition else [],
        metrics=[target.metric for target in definition.quality] if definition else [],
        generation=METRICS if row.kind is GENERATION else (),
        elsewhere=[one for one in load_sets() if row.names.benchmark in one.about],
        round_kind=row.round_kind,
        levels=describe_levels(entry for entry in entries if entry.level),
    )


def _make_division(site: Site, name: str, entries: Sequence[Entry]) -> Division:
    definition = next((entry.definition for entry in entries if entry.definition), None)
    ranked = [entry for entry in entries if entry.has_score]
    half_width = find_half_width(ranked)
    unit = choose_unit(ranked)
    of = site.colour(ranked)
    best = next((entry for entry in ranked if entry.is_ranked and entry.level), None)
    lines = [
        _make_line(entry, rank, of.get(entry.id), make_score_cell(entry, half_width, unit), best)
        for entry, rank in rank_rows(ranked)
    ]
    plots = curves.plot_results(ranked, of, definition, name) if ranked else []
    other_targets: Iterable[Table | None] = ()
    if entries[0].kind is TRAINING:
        what = "accelerators" if any(entry.hardware.accelerators for entry in ranked) else "nodes"
        families = scaling.group_families(ranked)
        field = scaling.plot_scaling(families, name, what, "minutes", site.devices)
        plots += filter(None, (field, scaling.plot_convergence(ranked, of, name)))
        targets = definition.quality if definition else ()
        other_targets = (curves.tabulate_other_targets(ranked, target) for target in targets)
    energy = scaling.plot_energy(ranked, of, name)
    return Division(
        name,
        tuple(lines),
        f"{100 * half_width:.0f}",
        (*plots, energy) if energy else tuple(plots),
        tuple(filter(None, other_targets)),
        tuple(measure_devices(ranked)),
        tuple((entry, make_score_cell(entry, 1.0)) for entry in entries if not entry.has_score),
    )


def _make_line(
    entry: Entry, rank: Rank | None, colour: int | None, cell: ScoreCell, best: Entry | None
) -> Line:
    behind = _compare_with_best(best, entry)
    return Line(
        entry,
        rank,
        entry.name,
        colour,
        cell,
        behind.value if behind else None,
        _format_behind(behind) if behind and entry is not best else "",
        format_reference(entry),
    )


def _compare_with_best(best: Entry | None, entry: Entry) -> Ratio | None:
    """Return how many times as slow as the first a result is; 1 for the first itself."""
    if best is None or best.level is None or entry.level is None or not entry.is_ranked:
        return None
    return ratio(best.level, entry.level)


def _format_behind(behind: Ratio) -> str:
    """Format how much slower a result is, or say that no difference can be claimed."""
    return format_ratio_interval(behind) if behind.is_difference else "no difference"


def describe_resolution(definition: Definition) -> str:
    """Say which differences the required runs show, if it was simulated for this definition.

    Empty without `cepheid measure resolution --record`.
    """
    found = evidence.read_file(definition.name, evidence.RESOLUTION_FILE).get(definition.scale)
    if not found or found["definition_digest"] != definition.digest:
        return ""
    pair, table = (
        "a factor of ten or more" if share is None else format_percent(share)
        for share in (found["pair"], found["table"])
    )
    said = (
        f"with {found['runs']} runs whose times per sample differ by "
        f"{format_percent(found['spread'])}, two systems are told apart from {pair} on, "
        f"in a table of ten from {table}"
    )
    if found["early"] is None:
        return said
    return (
        f"{said}; convergence 10% early is rejected with a probability of {found['early'][1]:.2f}, "
        f"10% late charged with {found['late'][1]:.2f}"
    )


def _describe_rules(definition: Definition) -> list[tuple[str, str]]:
    """Return what a reader must know to understand a number, as name and text."""
    runs, timing = definition.runs, definition.timing
    dropped = f"the fastest {runs.drop_fastest} and the slowest {runs.drop_slowest}"
    facts = [
        ("target", " and ".join(map(str, definition.quality))),
        (
            "runs",
            f"{runs.required}; the time to train leaves out {dropped}, the score none"
            if definition.kind == "train"
            else f"{runs.required}",
        ),
    ]
    if definition.generation:
        counts = ", ".join(f"{count:,}" for count in definition.generation.counts)
        facts.append(
            (
                "timed",
                f"generating {counts} images at a time; latency is that of the smallest number",
            )
        )
        facts.append(
            ("ranked by", "images per second with the largest number of images (rule T26)")
        )
    else:
        every = f"every {timing.eval_every_samples:,} samples"
        facts.append(("evaluation", f"{every}, at most {timing.max_samples:,} samples in all"))
        facts.append(("end of a run", evidence.describe_end(definition)))
        facts.append(("clock", "from run_start, before the data are touched, to run_stop"))
    if resolution := describe_resolution(definition):
        facts.append(("resolution", resolution))
    facts += [("margins", text)] if (text := margins.describe(definition)) else []
    fixed = [f"{h.name} {h.default}" for h in definition.hyperparameters.values() if h.is_constant]
    if fixed:
        facts.append(("fixed in the closed division", ", ".join(fixed)))
    return facts
