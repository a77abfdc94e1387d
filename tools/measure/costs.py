"""`cepheid measure costs`: what each step of an optimizer costs in an update, beside its paper."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reference.machine.placement import end_rank, find_placement
from rules import definition as definitions
from rules.errors import UserError
from tools.cli import EXIT_FINE, run_tool
from tools.console import writing
from tools.console.arguments import (
    add_benchmark,
    add_data_option,
    add_set_option,
    make_command_parser,
)

if TYPE_CHECKING:
    from reference.measure.costs import MeasuredCosts, Setup, Update

DESCRIPTION = """\
Measure what an update costs with the optimizer of a benchmark, by the steps with which its paper
made it fast (benchmarks/<name>/costs.yaml):

  time of an update  of each step, over that of the baseline, in turns with it
  phases             where the time of an update goes, and the bytes that all ranks send in one for
                     the optimizer; torch's average of the gradients is not counted
  parts              measurements of the optimizer's own, for K-FAC its inverses
  time to target     the epochs that `cepheid measure epochs` recorded times the measured time of an
                     update, and the same projected to more ranks

Steps that change only what travels between ranks or nodes are left out where there is one; start
the command with torchrun for these. The output says what is projected from measured parts, and what
others reported: their machine is not this one.
"""
EXAMPLES = """\
examples:
  cepheid measure costs kfac
  torchrun --standalone --nproc-per-node 2 -m tools.measure costs kfac --output costs.json
  cepheid measure costs kfac --figures figures/

exit codes: 0 fine; 2 wrong use
"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `cepheid measure costs`."""
    parser = make_command_parser("measure costs", DESCRIPTION, EXAMPLES)
    add_benchmark(parser, "which benchmark; it needs a costs.yaml")
    add = parser.add_argument
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
    from reference.measure.cost_steps import load_costs
    from reference.measure.costs import Setup, load_parts
    from reference.measure.figures.drawing import make_folder

    arguments = make_parser().parse_args(argv)
    definition = definitions.load(arguments.benchmark, arguments.scale)
    costs = load_costs(definition.name, definition.scale)
    if arguments.rounds < 3:
        raise UserError(f"--rounds {arguments.rounds}: expected 3 or more, for a spread")
    if arguments.settle < 0:
        raise UserError(f"--settle {arguments.settle}: expected 0 or more")
    setup = Setup(
        definition,
        costs,
        load_parts(definition.name),
        arguments.overrides,
        arguments.data,
        arguments.rounds,
        arguments.settle,
    )
    setup.refuse()
    if arguments.figures:
        make_folder(arguments.figures, "--figures")
    _measure(setup, arguments.output, arguments.figures)
    if find_placement().world_size > 1:
        end_rank(EXIT_FINE)
    return EXIT_FINE


def _measure(setup: "Setup", output: Path | None, figures: Path | None) -> None:
    from reference.measure.costs import measure_costs
    from reference.session.observer import prepare_data
    from reference.torch.distributed import start_ranks
    from tools.console.terminal import Terminal

    load = os.getloadavg()[0]
    with start_ranks() as ranks:
        terminal = Terminal(quiet=not ranks.is_first)
        if ranks.is_first:
            prepare_data(setup.definition, setup.data_root, terminal)
        ranks.barrier()
        measured = measure_costs(setup, ranks, terminal.tell)
        if not ranks.is_first:
            return
        terminal.tell(_describe(setup, measured))
        terminal.warn_of_load(load)
        if output:
            facts = {**measured.as_json(setup), "load_before": load}
            writing.replace_file(output, json.dumps(facts, indent=1) + "\n")
            terminal.tell(f"written: {output}")
        if figures:
            for path in _draw(setup, measured, figures):
                terminal.tell(f"written: {path}")


def _draw(setup: "Setup", measured: "MeasuredCosts", folder: Path) -> list[Path]:
    from reference.measure.figures.costs import draw_phases

    where = f"{setup.definition.scale} scale, {measured.ranks} rank(s)"
    order = [*setup.parts.phases, "other"]
    phases = _list_phases(setup, measured)
    ours = draw_phases(folder / "phases.png", setup.costs, phases, order, where)
    return [ours, *setup.parts.draw(folder, measured.parts)]


def _describe(setup: "Setup", measured: "MeasuredCosts") -> str:
    """Return all tables as one text."""
    costs = setup.costs
    parts = [
        f"Time of an update ({measured.ranks} rank(s), {measured.global_batch_size} samples; "
        f"reported: {costs.source}, {costs.published_at})",
        _format_table([_make_update_row(setup, update) for update in measured.updates]),
        "Phases: milliseconds of an update of the first rank",
        _format_table(
            [
                {"step": name}
                | {
                    phase: f"{milliseconds.get(phase, 0.0):,.1f}"
                    for phase in (*setup.parts.phases, "other")
                }
                for name, milliseconds in _list_phases(setup, measured).items()
            ]
        ),
    ]
    for title, rows in setup.parts.list_tables(measured.parts).items():
        parts += [title, _format_table(rows)]
    parts += ["Time to target", _describe_times(setup, measured)]
    parts += [f"Reported: {costs.source}. {costs.note}"]
    parts += [_format_table([asdict(row) for row in costs.published])]
    return "\n\n".join(parts)


def _format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    from tabulate import tabulate

    cells = [{key: "" if value is None else value for key, value in row.items()} for row in rows]
    return tabulate(cells, headers="keys", disable_numparse=True)


def _list_phases(setup: "Setup", measured: "MeasuredCosts") -> dict[str, Mapping[str, float]]:
    """Return the milliseconds of the first rank's phases, by step."""
    phases = {setup.costs.baseline.name: measured.baseline_phases_ms[0]}
    return phases | {update.name: update.phases_ms[0] for update in measured.updates}


def _make_update_row(setup: "Setup", update: "Update") -> Mapping[str, Any]:
    baseline = setup.costs.baseline
    reported = next(step.published_ms for step in setup.costs.steps if step.name == update.name)
    reported_ratio = None
    if reported and baseline.published_ms:
        reported_ratio = f"{reported / baseline.published_ms:.2f}"
    low, high = update.ratio_quartiles
    return {
        "step": update.name,
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
        f"{_format_table(rows)}\n\nEpochs are means of the seeds that reached the target. "
        f"Projections start from the phases of {measured.ranks} rank(s) with the same global "
        f"batch: work on samples is divided, the busiest rank decides the optimizer's own parts, "
        f"{communication}, and the rest does not change."
    )


if __name__ == "__main__":
    run_tool(main)
