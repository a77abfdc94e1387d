"""What each step of an optimizer costs in an update, beside its paper: `cepheid measure costs`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine import options
from cepheid.measure.engine.study import Help, Measured, Request, Study, Table, make_table
from cepheid.measure.studies.costs.cost_steps import load_compared, load_costs
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.measure.studies.costs.costs import MeasuredCosts, Setup, Update

    Pair = tuple[Setup, MeasuredCosts]

DESCRIPTION = """\
Measure what an update costs with the optimizer of a benchmark, by the steps with which its paper
made it fast (benchmarks/<name>/costs.yaml):

  time of an update  of each step, over that of the baseline, in turns with it: medians of turns,
                     their ratio, in brackets the quartiles of the ratios turn by turn
  phases             where the time of an update goes, and the bytes that all ranks send in one for
                     the optimizer; torch's average of the gradients is not counted
  parts              measurements of the optimizer's own, for K-FAC its inverses
  time to target     the epochs that `cepheid measure epochs` recorded times the measured time of an
                     update, and the same projected to more ranks

With --compare NAME it measures some of the steps for each of several settings, such as networks,
each against the baseline with the same settings.

With --ladder it measures instead what makes the baseline fast, step by step, without the optimizer.

Steps that change only what travels between ranks or nodes are left out where there is one; start
the command with torchrun for these. The output says what is projected from measured parts, and what
others reported: their machine is not this one.
"""
EXAMPLES = """\
examples:
  cepheid measure costs kfac
  torchrun --standalone --nproc-per-node 2 -m cepheid.tools.measure costs kfac --output costs.json
two nodes of two ranks, also on one machine: at the same time with --node-rank 0 and 1
  torchrun --nnodes 2 --nproc-per-node 2 --node-rank 0 --master-addr 127.0.0.1 \\
    -m cepheid.tools.measure costs kfac
  cepheid measure costs kfac --figures figures/
  cepheid measure costs kfac --compare networks --figures figures/
  cepheid measure costs kfac --ladder --settle 2 --figures figures/ --output ladder.json

exit codes: 0 fine; 2 wrong use
"""


def list_setups(request: Request) -> "list[Setup]":
    """Return what is measured, one for each group of a comparison; refuse what cannot be."""
    from cepheid.measure.studies.costs.costs import Setup, load_parts

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
    parts, root = load_parts(definition.name), request.data_root
    setups = [
        Setup(definition, costs, parts, asked.overrides, root, asked.rounds, asked.settle)
        for costs in all_costs
    ]
    for setup in setups:
        setup.refuse()
        if asked.ladder:
            setup.costs.require_ladder()
    return setups


def _prepare(request: Request, setup: "Setup") -> Any:
    """Prepare the data on the first rank; return all ranks when they are there."""
    from cepheid.reference.session.observer import prepare_data

    ranks = request.ranks
    assert ranks is not None
    if ranks.is_first:
        prepare_data(setup.definition, setup.data_root, request.observer)
    ranks.barrier()
    return ranks


def measure_steps(request: Request, setups: "Sequence[Setup]") -> Measured:
    """Measure each step in turns with the baseline."""
    from cepheid.measure.studies.costs.costs import measure_costs

    ranks = _prepare(request, setups[0])
    measured = [(setup, measure_costs(setup, ranks, request.observer.tell)) for setup in setups]
    if not ranks.is_first:
        return Measured()
    of_each = {setup.costs.group: costs.as_json(setup) for setup, costs in measured}
    facts = of_each.get("", {"compared": of_each})
    return Measured(tables=_list_tables(measured), facts=facts, found=measured)


def draw_steps(folder: Path, _: Request, measured: Measured) -> list[Path]:
    """Draw the phases of each step, and what the optimizer has beside them."""
    from cepheid.measure.studies.costs.figure import draw_phases

    setup, first = measured.found[0]
    where = f"{setup.definition.scale} scale, {first.ranks} rank(s)"
    order = [*setup.parts.phases, "other"]
    phases = _list_phases(measured.found)
    ours = draw_phases(folder / "phases.png", setup.costs, phases, order, where)
    return [ours] if setup.costs.group else [ours, *setup.parts.draw(folder, first.parts)]


def _list_tables(measured: "Sequence[Pair]") -> list[Table]:
    setup, first = measured[0]
    costs, phases = setup.costs, (*setup.parts.phases, "other")
    reported = f"; reported: {costs.source}, {costs.published_at}" if costs.published else ""
    where = f"{first.ranks} rank(s), {first.global_batch_size} samples{reported}"
    updates = [_make_update_row(one, update) for one, costs in measured for update in costs.updates]
    rows = [
        {"step": name} | {phase: f"{found.get(phase, 0.0):,.1f}" for phase in phases}
        for name, found in _list_phases(measured).items()
    ]
    tables = [
        make_table(f"Time of an update ({where})", updates),
        make_table("Phases: milliseconds of an update of the first rank", rows),
    ]
    for one, found in measured:
        of_group = f"{one.costs.group}: " if one.costs.group else ""
        for title, of_parts in one.parts.list_tables(found.parts).items():
            tables.append(make_table(f"{of_group}{title}", of_parts))
        tables.append(_list_times(one, found, f"{of_group}Time to target"))
    if costs.published:
        source = f"Reported: {costs.source}. {costs.note}"
        tables.append(make_table(source, [asdict(row) for row in costs.published]))
    return tables


def _list_phases(
    measured: "Sequence[Pair]",
) -> dict[str, Mapping[str, float]]:
    """Return the milliseconds of the first rank's phases, by step."""
    phases = {}
    for setup, costs in measured:
        phases[setup.costs.name(setup.costs.baseline)] = costs.baseline_phases_ms[0]
        phases |= {setup.costs.name(update): update.phases_ms[0] for update in costs.updates}
    return phases


def _make_update_row(setup: "Setup", update: "Update") -> Mapping[str, Any]:
    baseline = setup.costs.baseline
    reported = next(step.published_ms for step in setup.costs.steps if step.name == update.name)
    reported_ratio = None
    if reported and baseline.published_ms:
        reported_ratio = f"{reported / baseline.published_ms:.2f}"
    low, high = update.ratio_quartiles
    return {
        "step": setup.costs.name(update),
        f"{baseline.name} ms": f"{update.baseline_milliseconds:,.1f}",
        "ms": f"{update.milliseconds:,.1f}",
        "ratio": f"{update.ratio:.2f} ({low:.2f} to {high:.2f})",
        "reported ms": reported,
        "reported ratio": reported_ratio,
        "bytes sent": f"{sum(update.sent_bytes.values()):,}",
        **setup.parts.describe(update),
    }


def _list_times(setup: "Setup", measured: "MeasuredCosts", title: str) -> Table:
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
            **{
                f"projected, {ranks} ranks": f"{minutes:.2f}"
                for ranks, minutes in row["projected_minutes"].items()
            },
        }
        for row in measured.times_to_target
    ]
    communication = (
        "one rank has no communication"
        if measured.ranks == 1
        else "communication grows as a ring's"
    )
    note = (
        f"Epochs are means of the seeds that reached the target. "
        f"Projections start from the phases of {measured.ranks} rank(s) with the same global "
        f"batch: work on samples is divided, the busiest rank decides the optimizer's own parts, "
        f"{communication}, and the rest does not change."
    )
    return make_table(title, rows, note)


def measure_ladder(request: Request, setups: "Sequence[Setup]") -> Measured:
    """Measure the ladder of the one setup."""
    from cepheid.measure.studies.costs import ladder

    (setup,) = setups
    ranks = _prepare(request, setup)
    measured = ladder.measure_ladder(setup, ranks, request.observer.tell)
    known = setup.costs.require_ladder()
    where = (
        f"{measured.ranks} rank(s), {measured.global_batch_size} samples, "
        f"{measured.threads} thread(s)"
    )
    rows = [
        {
            "step": rung.name,
            "ms": f"{rung.milliseconds:,.1f}",
            "times as fast as the one before": _format_speedup(rung.speedup) if place else "",
            "as the first": _format_speedup(rung.speedup_in_all) if place else "",
            **{
                phase: f"{rung.phases_ms.get(phase, 0.0):,.1f}"
                for phase in ("forward", "backward", "update", "other")
            },
            "reported": next(each.reported for each in known.rungs if each.name == rung.name),
        }
        for place, rung in enumerate(measured.rungs)
    ]
    title = f"{known.title} ({where}; reported: {setup.costs.source}, {known.published_at})"
    left_out = [f"left out: {name}: {reason}" for name, reason in measured.left_out.items()]
    return Measured(
        tables=[make_table(title, rows)],
        notes=left_out,
        facts=measured.as_json(setup),
        found=(setup, measured, where),
    )


def draw_ladder(folder: Path, _: Request, measured: Measured) -> list[Path]:
    """Draw the phases of each rung, and how much faster it is than the first."""
    from cepheid.measure.studies.costs import figure

    setup, ladder, where = measured.found
    phases = {rung.name: rung.phases_ms for rung in ladder.rungs}
    speedups = {rung.name: rung.speedup_in_all for rung in ladder.rungs}
    order = [*setup.parts.phases, "other"]
    title = f"{setup.costs.require_ladder().title}: {setup.definition.name}"
    return [figure.draw_ladder(folder / "ladder.png", title, phases, speedups, order, where)]


def _format_speedup(speedup: tuple[float, float, float]) -> str:
    middle, low, high = speedup
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


HELP = Help(DESCRIPTION, EXAMPLES)
LADDER = Study(
    name="costs",
    help=HELP,
    options=(),
    arms=list_setups,
    measure=measure_ladder,
    figure=draw_ladder,
    is_timed=True,
    has_ranks=True,
)
STUDY = Study(
    name="costs",
    help=HELP,
    options=(
        *options.offer_benchmark("which benchmark; it needs a costs.yaml"),
        options.Option(
            "--compare",
            {"metavar": "NAME", "help": "a comparison of costs.yaml (default: all steps)"},
            group="what",
        ),
        options.Option(
            "--ladder",
            {"action": "store_true",
             "help": "measure what makes the baseline fast, step by step"},
            group="what",
        ),
        options.offer_rounds(5),
        options.Option(
            "--settle",
            {"type": int, "default": 60, "metavar": "N",
             "help": "updates before the first turn, until the optimizer has settled "
             "(default: %(default)s)"},
            least=0,
        ),
        options.offer_settings("a setting of all steps, as for `cepheid run`"),
        options.FIGURES,
        options.FILE,
        options.DATA,
    ),
    arms=list_setups,
    measure=measure_steps,
    figure=draw_steps,
    others={"ladder": LADDER},
    is_timed=True,
    has_ranks=True,
)  # fmt: skip
