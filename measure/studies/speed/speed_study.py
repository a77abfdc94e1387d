"""How fast the reference is on this machine, against simpler code: `cepheid measure speed`."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine import options
from cepheid.measure.engine.study import Column, Help, Measured, Request, Study
from cepheid.rules.errors import UserError

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
CODE_FACTS = ("training_step", "sampling", "decoding")
"""The facts about an implementation that say how its code is compiled."""


def list_measurements(request: Request, _: object) -> Measured:
    """Return a line for each measurement that a benchmark can have."""
    from cepheid.measure.studies.speed import speed

    left_out = speed.list_left_out(request.definition)
    lines = []
    for name, measure in speed.find_measurements(request.definition).items():
        note = f" ({left_out[name]})" if name in left_out else ""
        lines.append(f"{name:<12}{(measure.__doc__ or '').splitlines()[0]}{note}")
    return Measured(notes=lines)


def pick_measurements(request: Request) -> "Mapping[str, Measure]":
    """Return the measurements that the user asks for, by name."""
    definition, asked = request.require_extras(), request.arguments
    from cepheid.measure.studies.speed import speed

    if asked.profile and asked.only:
        raise UserError("--profile is a measurement of its own: leave out --only")
    return speed.pick_measurements(definition, [PROFILE] if asked.profile else asked.only)


def measure_all(request: Request, measures: "Mapping[str, Measure]") -> Measured:
    """Make the task ready, and measure one after the other; a row is a name and its line."""
    from cepheid.measure.engine.subject import Subject, make_ready_task, pick_create
    from cepheid.reference.session.observer import prepare_data

    config, ranks, observer = request.configure(), request.ranks, request.observer
    assert ranks is not None
    if ranks.is_first:
        prepare_data(request.definition, config.data_root, observer)
    ranks.barrier()
    observer.tell("reference: building, compiling, warming up")
    task = make_ready_task(pick_create(import_task(request.definition, "torch")), config, ranks)
    implementation = task.implementation()
    observer.tell(_describe_implementation(implementation))
    # A display does most on a terminal; this one is not seen, and open until the process ends.
    unseen = request.open_display(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    asked = request.arguments
    subject = Subject(
        config, ranks, task, asked.overrides, asked.rounds, unseen.show_run, observer.count
    )
    rows = []
    facts = {"result": config.result_name, "implementation": implementation}
    for name, measure in measures.items():
        measurement = measure(subject)
        facts[name] = measurement.facts
        for row in measurement.rows:
            observer.tell(f"{name}: {row.what}: {row.result}")
            rows.append((name, row))
    return Measured(rows, facts=facts)


def _describe_implementation(facts: Mapping[str, Any]) -> str:
    """Return how the reference computes, and why."""
    parts = [facts["framework"], facts["device"], f"{facts['threads_per_rank']} threads"]
    parts += [facts["precision"], *(facts[key] for key in CODE_FACTS if key in facts)]
    reasons = [f"  {key}: {text}" for key, text in facts["execution"]["because"].items()]
    return "\n".join(["  " + ", ".join(parts), *reasons])


HELP = Help(DESCRIPTION, EXAMPLES)
STUDY = Study(
    name="speed",
    help=HELP,
    options=(
        *options.offer_benchmark(),
        options.Option(
            "--list",
            {"action": "store_true",
             "help": "list what can be measured of this benchmark, and stop"},
        ),
        options.Option(
            "--only",
            {"action": "append", "default": [], "metavar": "WHAT",
             "help": "one measurement; may be repeated (default: all but those on request)"},
        ),
        options.offer_settings("a setting of the reference, as for `cepheid run`"),
        options.Option(
            "--profile", {"action": "store_true", "help": "the same as --only profile"}
        ),
        options.offer_rounds(15),
        options.DATA,
        options.FILE,
    ),
    arms=pick_measurements,
    measure=measure_all,
    columns=(
        Column("", lambda row: row[0]),
        Column("what", lambda row: row[1].what),
        Column("against", lambda row: row[1].against),
        Column("reference", lambda row: row[1].reference),
        Column("result", lambda row: row[1].result),
    ),
    others={"list": Study("speed", HELP, (), Request.require_extras, list_measurements)},
    is_timed=True,
    has_ranks=True,
)  # fmt: skip
