"""`cepheid measure speed`: how fast the reference is on this machine, against simpler code."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks.registry import import_task
from cepheid.reference.machine.placement import end_rank, find_placement
from cepheid.rules import definition as definitions
from cepheid.rules import extras
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.tools.console import writing
from cepheid.tools.console.arguments import (
    add_benchmark,
    add_data_option,
    add_set_option,
    make_command_parser,
)
from cepheid.tools.console.program import EXIT_FINE, run_tool

if TYPE_CHECKING:
    from cepheid.measure.engine.subject import Measure

DESCRIPTION = """\
Measure on this machine, in one process, the reference against simpler code; the two take turns.

Of a benchmark that trains:

  step       one training step, as a run does it, against the same network as one writes it first:
             eager, float32, torch's defaults (benchmarks/<name>/plain.py)
  harness    the timed loop with run log and display against the bare loop over the same steps and
             evaluations: what the harness costs; and the share of the loop spent outside the
             task's own code, which other work on the machine changes less
  framework  one training step in PyTorch against the same in Keras on TensorFlow, each as it
             computes fastest here, on as many threads (needs benchmarks/<name>/keras_task.py and
             the extra keras)
  input      only on request: one training step in Keras that tf.data feeds by a parallel map and
             prefetch against one on arrays that are read when their turn comes
  memory     the largest resident memory of a short run, in a process of its own
  profile    only on request: where the time of a step goes: data, forward, backward, communication
             that the backward pass does not hide, update; and what harness and log add
  beside_work  only on request: training beside a competing process on one processor, then on each;
             half of these processors and all of the others are a fair share, of which at most a
             third should be lost

Of a benchmark that generates, for three numbers of images at a time, against plain.py:

  sampling   noise to latents
  decoding   latents to images
  generation both together
  memory     as above

A benchmark may add measurements of its own; --list shows all.

Compare ratios rather than times: other work on the machine changes ratios less. They are ratios of
medians. Numbers in brackets enclose the middle half of the measurements, or of the ratios turn by
turn.
"""
EXAMPLES = """\
examples:
  cepheid measure speed galaxy_shape --scale mini
  cepheid measure speed galaxy_shape --scale mini --only step --set precision=fp32 --rounds 30
  cepheid measure speed galaxy_shape --scale mini --output speed.json
  cepheid measure speed kfac --list
  cepheid measure speed galaxy_generation --only sampling --only decoding
  torchrun --standalone --nproc-per-node 2 -m cepheid.tools.measure speed resnet50 --profile

exit codes: 0 fine; 2 wrong use
"""
PROFILE = "profile"
COLUMNS = ("what", "against", "reference", "result")
CODE_FACTS = ("training_step", "sampling", "decoding")
"""The facts about an implementation that say how its code is compiled."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `cepheid measure speed`."""
    parser = make_command_parser("measure speed", DESCRIPTION, EXAMPLES)
    add_benchmark(parser)
    add = parser.add_argument
    add("--list", action="store_true", help="list what can be measured of this benchmark, and stop")
    add(
        "--only",
        metavar="WHAT",
        action="append",
        default=[],
        help="one measurement; may be repeated (default: all but those on request)",
    )
    add_set_option(parser, "a setting of the reference, as for `cepheid run`")
    add("--profile", action="store_true", help="the same as --only profile")
    add("--rounds", type=int, default=15, metavar="N", help="turns of each side (default: 15)")
    add_data_option(parser)
    add("--output", type=Path, metavar="FILE", help="write all measurements as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    arguments = make_parser().parse_args(argv)
    definition = definitions.load(arguments.benchmark, arguments.scale)
    extras.require_for_runs(definition.extras)

    from cepheid.measure.studies.speed import speed

    if arguments.list:
        print(_list_measurements(definition))
        return EXIT_FINE
    if arguments.profile and arguments.only:
        raise UserError("--profile is a measurement of its own: leave out --only")
    only = [PROFILE] if arguments.profile else arguments.only
    if arguments.rounds < 3:
        raise UserError(f"--rounds {arguments.rounds}: expected 3 or more, for a spread")
    _measure(definition, speed.pick_measurements(definition, only), arguments)
    if find_placement().world_size > 1:
        end_rank(EXIT_FINE)
    return EXIT_FINE


def _list_measurements(definition: Definition) -> str:
    from cepheid.measure.studies.speed import speed

    left_out = speed.list_left_out(definition)
    lines = []
    for name, measure in speed.find_measurements(definition).items():
        note = f" ({left_out[name]})" if name in left_out else ""
        lines.append(f"{name:<12}{(measure.__doc__ or '').splitlines()[0]}{note}")
    return "\n".join(lines)


def _measure(
    definition: Definition, measures: Mapping[str, "Measure"], arguments: argparse.Namespace
) -> None:
    load = os.getloadavg()[0]  # before the frameworks are imported

    from tabulate import tabulate

    from cepheid.measure.engine.subject import Subject, make_ready_task, pick_create
    from cepheid.reference.run.config import configure
    from cepheid.reference.session.observer import prepare_data
    from cepheid.reference.torch.distributed import start_ranks
    from cepheid.tools.console.terminal import Terminal

    config = configure(
        definition,
        division="open",  # what is measured here need not be allowed in a closed result
        overrides=arguments.overrides,
        data_root=arguments.data,
        seed=1,
    )
    with start_ranks() as ranks:
        terminal = Terminal(quiet=not ranks.is_first)
        if ranks.is_first:
            prepare_data(definition, config.data_root, terminal)
        ranks.barrier()
        terminal.tell("reference: building, compiling, warming up")
        task = make_ready_task(pick_create(import_task(definition, "torch")), config, ranks)
        implementation = task.implementation()
        terminal.tell(_describe_implementation(implementation))
        # A display does most on a terminal; this one is not seen, and open until the process ends.
        unseen = Terminal(file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        subject = Subject(
            config,
            ranks,
            task,
            arguments.overrides,
            arguments.rounds,
            unseen.show_run,
            terminal.count,
        )
        rows, facts = [], {}
        for name, measure in measures.items():
            measurement = measure(subject)
            facts[name] = measurement.facts
            for row in measurement.rows:
                terminal.tell(f"{name}: {row.what}: {row.result}")
                rows.append({"": name} | {column: getattr(row, column) for column in COLUMNS})
    terminal.tell(f"\n{tabulate(rows, headers='keys', disable_numparse=True)}")
    terminal.warn_of_load(load)
    if arguments.output and ranks.is_first:
        about = {
            "result": config.result_name,
            "implementation": implementation,
            "load_before": load,
        }
        writing.replace_file(arguments.output, json.dumps({**about, **facts}, indent=1) + "\n")
        terminal.tell(f"written: {arguments.output}")


def _describe_implementation(facts: Mapping[str, Any]) -> str:
    """Return how the reference computes, and why."""
    parts = [facts["framework"], facts["device"], f"{facts['threads_per_rank']} threads"]
    parts += [facts["precision"], *(facts[key] for key in CODE_FACTS if key in facts)]
    reasons = [f"  {key}: {text}" for key, text in facts["execution"]["because"].items()]
    return "\n".join(["  " + ", ".join(parts), *reasons])


if __name__ == "__main__":
    run_tool(main)
