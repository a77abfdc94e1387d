"""`cepheid measure costs`: what each step of an optimizer costs in an update, beside its paper."""

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.reference.machine.placement import end_rank, find_placement
from cepheid.rules import definition as definitions
from cepheid.rules import extras
from cepheid.rules.errors import UserError
from cepheid.tools.console import writing
from cepheid.tools.console.arguments import (
    add_benchmark,
    add_data_option,
    add_set_option,
    make_command_parser,
)
from cepheid.tools.console.program import EXIT_FINE, run_tool
from cepheid.tools.measure.cost_ladder import Show, Shown, format_table, show_ladder

if TYPE_CHECKING:
    from cepheid.measure.studies.costs.cost_steps import Costs
    from cepheid.measure.studies.costs.costs import MeasuredCosts, Setup, Update
    from cepheid.reference.torch.distributed import TorchRanks

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
Pair = tuple["Setup", "MeasuredCosts"]
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


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `cepheid measure costs`."""
    parser = make_command_parser("measure costs", DESCRIPTION, EXAMPLES)
    add_benchmark(parser, "which benchmark; it needs a costs.yaml")
    add = parser.add_argument
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--compare", metavar="NAME", help="a comparison of costs.yaml (default: all steps)"
    )
    chosen.add_argument(
        "--ladder", action="store_true", help="measure what makes the baseline fast, step by step"
    )
    add("--rounds", type=int, default=5, metavar="N", help="turns of each side (default: 5)")
    add(
        "--settle",
        type=int,
        default=60,
        metavar="N",
        help="updates before the first turn, until the optimizer has settled "
        "(default: %(default)s)",
    )
    add_set_option(parser, "a setting of all steps, as for `cepheid run`")
    add("--figures", type=Path, metavar="DIR", help="draw figures there")
    add("--output", type=Path, metavar="FILE", help="write all measurements as JSON")
    add_data_option(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print tables, draw figures."""
    from cepheid.measure.engine.drawing import make_folder
    from cepheid.measure.studies.costs.cost_steps import load_compared, load_costs
    from cepheid.measure.studies.costs.costs import Setup, load_parts

    arguments = make_parser().parse_args(argv)
    definition = definitions.load(arguments.benchmark, arguments.scale)
    where = definition.name, definition.scale
    compared = load_compared(*where, arguments.compare) if arguments.compare else ()
    _refuse_overlap(compared, arguments.overrides)
    if arguments.rounds < 3:
        raise UserError(f"--rounds {arguments.rounds}: expected 3 or more, for a spread")
    if arguments.settle < 0:
        raise UserError(f"--settle {arguments.settle}: expected 0 or more")
    extras.require_for_runs(definition.extras)
    setups = [
        Setup(
            definition,
            costs,
            load_parts(definition.name),
            arguments.overrides,
            arguments.data,
            arguments.rounds,
            arguments.settle,
        )
        for costs in compared or [load_costs(*where)]
    ]
    for setup in setups:
        setup.refuse()
    if arguments.ladder:
        setups[0].costs.require_ladder()
    if arguments.figures:
        make_folder(arguments.figures, "--figures")
    show = show_ladder if arguments.ladder else _show_steps
    _measure(setups, show, arguments.output, arguments.figures)
    if find_placement().world_size > 1:
        end_rank(EXIT_FINE)
    return EXIT_FINE


def _refuse_overlap(compared: Sequence["Costs"], overrides: Sequence[str]) -> None:
    """Raise UserError for a setting that would make groups of a comparison alike."""
    of_groups = {each.split("=")[0] for costs in compared for each in costs.overrides}
    for each in overrides:
        if (key := each.split("=")[0]) in of_groups:
            raise UserError(
                f"--set {each}: the settings that --compare measures differ in {key}; fix: leave "
                "this --set out"
            )


def _measure(
    setups: Sequence["Setup"], show: Show, output: Path | None, figures: Path | None
) -> None:
    from cepheid.reference.session.observer import prepare_data
    from cepheid.reference.torch.distributed import start_ranks
    from cepheid.tools.console.terminal import Terminal

    load = os.getloadavg()[0]
    with start_ranks() as ranks:
        terminal = Terminal(quiet=not ranks.is_first)
        if ranks.is_first:
            prepare_data(setups[0].definition, setups[0].data_root, terminal)
        ranks.barrier()
        shown = show(setups, ranks, terminal.tell)
        if not ranks.is_first:
            return
        terminal.tell(shown.text)
        terminal.warn_of_load(load)
        if output:
            facts = {**shown.facts, "load_before": load}
            writing.replace_file(output, json.dumps(facts, indent=1) + "\n")
            terminal.tell(f"written: {output}")
        if figures:
            for path in shown.draw(figures):
                terminal.tell(f"written: {path}")


def _show_steps(
    setups: Sequence["Setup"], ranks: "TorchRanks", say: Callable[[str], None]
) -> Shown:
    from cepheid.measure.studies.costs.costs import measure_costs

    measured = [(setup, measure_costs(setup, ranks, say)) for setup in setups]
    if not ranks.is_first:
        return Shown()
    of_each = {setup.costs.group: costs.as_json(setup) for setup, costs in measured}
    facts = of_each.get("", {"compared": of_each})
    return Shown(_describe(measured), facts, lambda folder: _draw(measured, folder))


def _draw(measured: Sequence[Pair], folder: Path) -> list[Path]:
    from cepheid.measure.studies.costs.figure import draw_phases

    setup, first = measured[0]
    where = f"{setup.definition.scale} scale, {first.ranks} rank(s)"
    order = [*setup.parts.phases, "other"]
    phases = _list_phases(measured)
    ours = draw_phases(folder / "phases.png", setup.costs, phases, order, where)
    if setup.costs.group:
        return [ours]
    return [ours, *setup.parts.draw(folder, first.parts)]


def _describe(measured: Sequence[Pair]) -> str:
    """Return all tables as one text."""
    setup, first = measured[0]
    costs = setup.costs
    reported = f"; reported: {costs.source}, {costs.published_at}" if costs.published else ""
    parts = [
        f"Time of an update ({first.ranks} rank(s), {first.global_batch_size} samples{reported})",
        format_table(
            [_make_update_row(one, update) for one, costs in measured for update in costs.updates]
        ),
        "Phases: milliseconds of an update of the first rank",
        format_table(
            [
                {"step": name}
                | {
                    phase: f"{milliseconds.get(phase, 0.0):,.1f}"
                    for phase in (*setup.parts.phases, "other")
                }
                for name, milliseconds in _list_phases(measured).items()
            ]
        ),
    ]
    for one, costs_of_one in measured:
        of_group = f"{one.costs.group}: " if one.costs.group else ""
        for title, rows in one.parts.list_tables(costs_of_one.parts).items():
            parts += [f"{of_group}{title}", format_table(rows)]
        parts += [f"{of_group}Time to target", _describe_times(one, costs_of_one)]
    if costs.published:
        parts += [f"Reported: {costs.source}. {costs.note}"]
        parts += [format_table([asdict(row) for row in costs.published])]
    return "\n\n".join(parts)


def _list_phases(measured: Sequence[Pair]) -> dict[str, Mapping[str, float]]:
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


def _describe_times(setup: "Setup", measured: "MeasuredCosts") -> str:
    if not measured.times_to_target:
        return (
            f"no runs are recorded for this definition; `cepheid measure epochs "
            f"{setup.definition.name} --scale {setup.definition.scale} --compare "
            f"{setup.costs.comparison}` makes them"
        )
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
    return (
        f"{format_table(rows)}\n\nEpochs are means of the seeds that reached the target. "
        f"Projections start from the phases of {measured.ranks} rank(s) with the same global "
        f"batch: work on samples is divided, the busiest rank decides the optimizer's own parts, "
        f"{communication}, and the rest does not change."
    )


if __name__ == "__main__":
    run_tool(main)
