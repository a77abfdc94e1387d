"""What each step of an optimizer costs in an update, beside its paper: `cepheid measure costs`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cepheid.measure.engine import figures
from cepheid.measure.engine.figures import OURS, REPORTED, draw_figure
from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.study import Measured, Request, Study, Table, make_table
from cepheid.measure.engine.turns import MIB, format_spread
from cepheid.measure.studies.costs import inverses
from cepheid.measure.studies.costs.declared import load_compared, load_costs
from cepheid.measure.studies.costs.updates import (
    PHASES,
    MeasuredCosts,
    Setup,
    Update,
    measure_costs,
    measure_ladder,
)
from cepheid.rules.errors import UserError

NAMES: Mapping[str, Any] = {"rotation": 45, "rotation_mode": "anchor", "ha": "right"}
BAR_INCHES = 0.3  # of height, so that the names beside them do not overlap
ALL_BARS_INCHES = 2.6  # at least
COLOURS = ("C5", "C0", "C6", "C1", "C2", "C4", "C3", "0.85")  # the last one is light grey
Phases = Mapping[str, Mapping[str, float]]  # milliseconds by step and phase


def list_setups(request: Request) -> list[Setup]:
    """Return what is measured, one for each group of a comparison; refuse what cannot be."""
    definition, asked = request.definition, request.arguments
    where = definition.name, definition.scale
    compared = load_compared(*where, asked.compare) if asked.compare else ()
    of_groups = {each.split("=")[0] for costs in compared for each in costs.overrides}
    for each in asked.overrides:
        if (key := each.split("=")[0]) in of_groups:
            raise UserError(
                f"--set {each}: the settings that --compare measures differ in {key}; fix: leave "
                "this --set out"
            )
    request.require_extras()
    all_costs = compared or [load_costs(*where)]  # refuses a benchmark that has none
    how = asked.overrides, request.data_root, asked.rounds, asked.settle, asked.input
    setups = [Setup(definition, costs, *how) for costs in all_costs]
    for setup in setups:
        inverses.refuse(setup.configure().hyperparameters)
    return setups


def measure_steps(request: Request, setups: Sequence[Setup]) -> Measured:
    """Measure each step in turns with the baseline."""
    ranks, say = request.prepare_on_ranks(), request.observer.tell
    measured = [(setup, measure_costs(setup, ranks, say)) for setup in setups]
    if not ranks.is_first:
        return Measured()
    of_each = {setup.costs.group: costs.as_json(setup) for setup, costs in measured}
    facts = of_each.get("", {"compared": of_each})
    return Measured(tables=_list_tables(measured), facts=facts, found=measured)


def _list_tables(measured: Sequence[tuple[Setup, MeasuredCosts]]) -> list[Table]:
    setup, first = measured[0]
    costs, phases = setup.costs, (*PHASES, "other")
    reported = f"; reported: {costs.source}, {costs.published_at}" if costs.published else ""
    where = f"{first.ranks} rank(s), {first.global_batch_size} samples{reported}"
    updates = [_list_cells(one, update) for one, costs in measured for update in costs.updates]
    rows = [
        {"step": name} | {phase: f"{of_step.get(phase, 0.0):,.1f}" for phase in phases}
        for name, of_step in _list_phases(measured).items()
    ]
    tables = [
        make_table(f"Time of an update ({where})", updates),
        make_table("Phases: milliseconds of an update of the first rank", rows),
    ]
    for one, found in measured:
        of_group = f"{one.costs.group}: " if one.costs.group else ""
        table = inverses.make_balance(found.parts)
        tables.append(replace(table, title=f"{of_group}{table.title}"))
        tables.append(_list_times(one, found, f"{of_group}Time to target"))
    if costs.published:
        source = f"Reported: {costs.source}. {costs.note}"
        tables.append(make_table(source, costs.published))
    return tables


def _list_phases(measured: Sequence[tuple[Setup, MeasuredCosts]]) -> Phases:
    """Return the milliseconds of the first rank's phases, by step."""
    phases = {}
    for setup, costs in measured:
        phases[setup.costs.name(setup.costs.baseline)] = costs.baseline_phases_ms[0]
        phases |= {setup.costs.name(update): update.phases_ms[0] for update in costs.updates}
    return phases


def _list_cells(setup: Setup, update: Update) -> Mapping[str, Any]:
    """Return the cells of an update by their heads."""
    baseline = setup.costs.baseline
    reported = next(step.published_ms for step in setup.costs.steps if step.name == update.name)
    ratio = None
    if reported and baseline.published_ms:
        ratio = f"{reported / baseline.published_ms:.2f}"
    return {
        "step": setup.costs.name(update),
        f"{baseline.name} ms": f"{update.baseline_milliseconds:,.1f}",
        "ms": f"{update.milliseconds:,.1f}",
        "ratio": format_spread(update.ratio, update.ratio_quartiles, ".2f"),
        "reported ms": reported,
        "reported ratio": ratio,
        f"{baseline.name} MiB": f"{update.memory[0] / MIB:,.0f}",
        "MiB": f"{update.memory[1] / MIB:,.0f}",
        "bytes sent": f"{sum(update.sent_bytes.values()):,}",
        **describe_sent(update),
    }


def describe_sent(update: Update) -> Mapping[str, str]:
    """Return the share of refreshed factors, and the bytes of factors and between nodes."""
    share = update.counts["refreshes"] / update.counts["possible_refreshes"]
    sent = update.sent_bytes.items()
    factors = sum(count for what, count in sent if what.startswith("factors"))
    between = sum(count for what, count in sent if what.endswith("between nodes"))
    return {
        "refreshed": f"{share:.1%}",
        "bytes of factors": f"{factors:,}",
        **({"between nodes": f"{between:,}"} if between else {}),
    }


def _list_times(setup: Setup, measured: MeasuredCosts, title: str) -> Table:
    """Return the table of the times to the target, with a text that explains it."""
    if not measured.times_to_target:
        missing = (
            f"no runs are recorded for this definition; `cepheid measure epochs "
            f"{setup.definition.name} --scale {setup.definition.scale} --compare "
            f"{setup.costs.comparison}` makes them"
        )
        return make_table(title, (), missing)
    rows = [
        {
            "optimizer": row["optimizer"],
            "reached": f"{row['reached']} of {row['seeds']} seeds",
            "epochs": f"{row['epochs']:.2f}",
            "updates": f"{row['updates']:,.0f}",
            "minutes": f"{row['minutes']:.2f}",
        }
        for row in measured.times_to_target
    ]
    return make_table(title, rows, "Epochs are means of the seeds that reached the target.")


def draw_steps(folder: Path, _: Request, measured: Measured) -> list[Path]:
    """Draw the phases of each step's update, with reported totals, and what else was measured."""
    setup, first = measured.found[0]
    costs, phases_ms = setup.costs, _list_phases(measured.found)
    reported = [step for step in (costs.baseline, *costs.steps) if step.published_ms]
    path, columns = folder / "phases.png", 2 if reported else 1
    with draw_figure(path, columns, inches=find_inches(phases_ms)) as (figure, (left, *others)):
        _stack_phases(left, phases_ms)
        left.set_title(f"measured: {setup.definition.scale} scale, {first.ranks} rank(s)")
        for right in others:
            places = range(len(reported))
            right.barh(places, [step.published_ms for step in reported], color=REPORTED)
            right.set_yticks(places, [step.name for step in reported])
            right.invert_yaxis()
            right.set(title="as reported: totals", xlabel="ms of an update")
        figures.write_title(figure, f"{costs.title} ({costs.source})")
    paths = [draw_ranks(folder, *one) for one in measured.found if first.ranks > 1]
    return [path, *paths] if costs.group else [path, *paths, inverses.draw(folder, first.parts)]


def draw_ranks(folder: Path, setup: Setup, measured: MeasuredCosts) -> Path:
    """Draw the phases of each rank in the first step: communication includes waiting."""
    update = measured.updates[0]
    path = folder / f"ranks{'-' * bool(setup.costs.group)}{setup.costs.group.lower()}.png"
    phases_ms = {f"rank {n}": phases for n, phases in enumerate(update.phases_ms)}
    with draw_figure(path, 1, inches=find_inches(phases_ms)) as (_, (axes,)):
        _stack_phases(axes, phases_ms)
        axes.set_title(setup.costs.name(update))
    return path


def find_inches(bars: Phases) -> float:
    """Return the height of a figure with so many bars, and a legend below them."""
    return max(0.0, BAR_INCHES * len(bars) - ALL_BARS_INCHES) + figures.INCHES


def _stack_phases(axes: Any, phases_ms: Phases) -> None:
    """Draw a bar for each step, with its phases on top of each other."""
    base = [0.0] * len(phases_ms)
    for phase, colour in zip((*PHASES, "other"), COLOURS, strict=True):
        heights = [max(0.0, of_step.get(phase, 0.0)) for of_step in phases_ms.values()]
        if any(heights):
            axes.barh(range(len(heights)), heights, left=base, color=colour, label=phase)
            base = [low + height for low, height in zip(base, heights, strict=True)]
    axes.set_yticks(range(len(phases_ms)), list(phases_ms))
    axes.invert_yaxis()
    axes.set_xlabel("ms of an update")
    axes.legend()


def measure_rungs(request: Request, setups: Sequence[Setup]) -> Measured:
    """Measure the ladder of the one setup."""
    (setup,) = setups
    ladder = measure_ladder(setup, request.prepare_on_ranks(), request.observer.tell)
    known = setup.costs.ladder
    reported = {rung.name: rung.reported for rung in known.rungs}
    where = (
        f"{ladder.ranks} rank(s), {ladder.global_batch_size} samples, {ladder.threads} thread(s)"
    )
    rows = [
        {
            "step": rung.name,
            "ms": f"{1000 * rung.timing.median_seconds:,.1f}",
            "times as fast as the one before": _format(rung.speedup) if place else "",
            "as the first": _format(rung.speedup_in_all) if place else "",
            **{
                phase: f"{rung.phases_ms.get(phase, 0.0):,.1f}"
                for phase in ("forward", "backward", "update", "other")
            },
            "MiB": f"{rung.memory / MIB:,.0f}",
            "overhead": "" if rung.overhead_ms is None else f"{rung.overhead_ms:,.1f}",
            "reported": reported[rung.name],
        }
        for place, rung in enumerate(ladder.rungs)
    ]
    title = f"{known.title} ({where}; reported: {setup.costs.source}, {known.published_at})"
    return Measured(
        tables=[make_table(title, rows)],
        notes=[f"left out: {name}: {reason}" for name, reason in ladder.left_out.items()],
        facts={**setup.describe(), **asdict(ladder)},
        found=(setup, ladder, where),
    )


def _format(ratio: tuple[float, float, float]) -> str:
    return format_spread(ratio[0], ratio[1:], ".2f")


def draw_rungs(folder: Path, _: Request, measured: Measured) -> list[Path]:
    """Draw the phases of each rung, and how much faster it is than the first."""
    setup, ladder, where = measured.found
    phases = {rung.name: rung.phases_ms for rung in ladder.rungs}
    path = folder / "ladder.png"
    title = f"{setup.costs.ladder.title}: {setup.definition.name}"
    speedups = [rung.speedup_in_all for rung in ladder.rungs]
    with draw_figure(path, columns=2) as (figure, (left, right)):
        _stack_phases(left, phases)
        left.set_title(f"measured: {where}")
        draw_speedups(right, list(phases), speedups)
        figure.suptitle(title)
    return [path]


def draw_speedups(
    axes: Any, names: Sequence[str], speedups: Sequence[tuple[float, float, float]]
) -> None:
    """Draw medians of speedups with their quartiles."""
    places, middles = range(len(names)), [middle for middle, *_ in speedups]
    axes.bar(places, middles, yerr=figures.find_bars(speedups), color=OURS, capsize=4)
    axes.axhline(1, color=REPORTED, linewidth=0.8)
    axes.set_xticks(places, names, **NAMES)
    axes.set_title("times as fast as the first (quartiles)")


LADDER = Study(
    "ladder", list_setups, measure_rungs, figure=draw_rungs, is_timed=True, has_ranks=True
)
STUDY = Study(
    "costs",
    list_setups,
    measure_steps,
    figure=draw_steps,
    is_timed=True,
    has_ranks=True,
    others=(LADDER,),
    **read_command("costs"),
)
