"""How fast the reference is on this machine, against simpler code: `cepheid measure speed`."""

import importlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine import options
from cepheid.measure.engine.noise import NO_DATA, REAL, SYNTHETIC
from cepheid.measure.engine.options import Option
from cepheid.measure.engine.study import Column, Measured, Request, Study
from cepheid.rules import definition as definitions
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from cepheid.measure.engine.turns import Measure

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
             that the backward pass does not hide, update; what harness and log add; memory; the
             shares of torch's operations (and copies), on the accelerator where there is one, and
             how much of a step these take; arithmetic, and its share of the peak
  beside_work  only on request: training beside a competing process on one processor, then on each;
             half of these processors and all of the others are a fair share, of which at most a
             third should be lost

Of a benchmark that generates, for three numbers of images at a time, against plain.py:

  sampling   noise to latents
  decoding   latents to images
  generation both together
  memory     as above

A benchmark may add measurements of its own; --list shows all.

With --input synthetic steps train on noise of the real shapes, and no dataset is needed. Networks
that grow are measured where a step is largest.

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
  cepheid measure speed mask_rcnn --scale full --input synthetic --set global_batch_size=1
  cepheid measure speed galaxy_generation --only sampling --only decoding
  torchrun --standalone --nproc-per-node 2 -m cepheid.tools.measure speed resnet50 --profile

exit codes: 0 fine; 2 wrong use
"""
BY_BENCHMARK = {  # the modules beside this one with what only some benchmarks measure
    "galaxy_bnn": "galaxies",
    "galaxy_shape": "galaxies",
    "galaxy_vae": "galaxies",
    "gnmt": "translation",
    "kfac": "kfac",
    "mask_rcnn": "images",
    "resnet50": "images",
    "ssd": "images",
    "transformer": "translation",
    "video_prediction": "images",
}
PROFILE = "profile"
ON_REQUEST = (PROFILE, "input", "beside_work")
"""What is measured only where --only names it."""
IN_KERAS = ("framework", "input")
ON_A_DATASET = {
    **dict.fromkeys(("harness", "memory", "beside_work"), "it makes a run, which evaluates"),
    **dict.fromkeys(IN_KERAS, "Keras reads the dataset itself"),
    **dict.fromkeys(("bucketing", "variants", "decoding"), "sentences of noise have one length"),
    **dict.fromkeys(("networks", "estimators", "formats"), "it trains until something is learned"),
    "whole_run": "stale factors follow from what is learned",
}
"""What means nothing on noise, and why."""
AGAINST_PLAIN = ("step", "sampling", "decoding", "generation")
CODE_FACTS = ("training_step", "sampling", "decoding")
"""The facts about an implementation that say how its code is compiled."""


def find_measurements(definition: Definition) -> "Mapping[str, Measure]":
    """Return all measurements of a benchmark: those of its kind, then its own."""
    from cepheid.measure.studies.speed.parts import MEASUREMENTS
    from cepheid.measure.studies.speed.profiles import measure_profile

    own, of_kind = _import_own(definition), MEASUREMENTS[definition.kind]
    if definition.kind == "train":  # the list begins with the two of a step
        of_kind = {"step": of_kind["step"], PROFILE: measure_profile, **of_kind}
    return {**of_kind, **(own.MEASUREMENTS[definition.name] if own else {})}


def _import_own(definition: Definition) -> Any:
    """Import the module of a benchmark's own measurements, if it has any."""
    module = BY_BENCHMARK.get(definition.name)
    return importlib.import_module(f"{__package__}.{module}") if module else None


def list_left_out(definition: Definition) -> Mapping[str, str]:
    """Return the measurements that are made only where --only names them, and why."""
    own = _import_own(definition)
    reasons = dict.fromkeys((*ON_REQUEST, *(own.ON_REQUEST if own else ())), "only on request")
    if not (importlib.util.find_spec("tensorflow") and importlib.util.find_spec("keras")):
        reasons |= dict.fromkeys(IN_KERAS, "needs the extra keras")
    for name in find_measurements(definition):
        if lacking := _find_lacking_file(definition, name):
            reasons[name] = f"not possible: {lacking} is missing"
    return reasons


def _find_lacking_file(definition: Definition, name: str) -> str:
    """Return the file that a measurement needs and the benchmark lacks, or an empty text."""
    needed = "plain.py" if name in AGAINST_PLAIN else "keras_task.py" if name in IN_KERAS else ""
    has_file = (definitions.BENCHMARKS / definition.name / needed).exists()
    return "" if has_file else f"benchmarks/{definition.name}/{needed}"


def list_measurements(_: Request, definition: Definition) -> Measured:
    """Return a line for each measurement that a benchmark can have."""
    left_out = list_left_out(definition)
    lines = []
    for name, measure in find_measurements(definition).items():
        note = f" ({left_out[name]})" if name in left_out else ""
        lines.append(f"{name:<12}{(measure.__doc__ or '').splitlines()[0]}{note}")
    return Measured(notes=lines)


def choose_measurements(request: Request) -> "Mapping[str, Measure]":
    """Return the measurements that the user asks for, by name."""
    definition, asked = request.require_extras(), request.arguments
    if asked.profile and asked.only:
        raise UserError("--profile is a measurement of its own: leave out --only")
    if asked.input == REAL:
        return pick_measurements(definition, [PROFILE] if asked.profile else asked.only)
    request.require_training(", so it has no data that noise could replace; leave out --input")
    return pick_measurements(definition, asked.only or [PROFILE], ON_A_DATASET)


def pick_measurements(
    definition: Definition, only: Sequence[str], refused: Mapping[str, str] = MappingProxyType({})
) -> "Mapping[str, Measure]":
    """Return the measurements that ``only`` names; without names all that are not on request.

    Raises UserError for a name that the benchmark does not have, or that is ``refused``.
    """
    known = find_measurements(definition)
    for name in only:
        if name not in known:
            raise UserError(
                f"--only {name}: {definition.name} has no such measurement"
                f"{did_you_mean(name, known)} (all: {', '.join(known)})"
            )
        if why := refused.get(name):
            raise UserError(
                f"--only {name} --input {SYNTHETIC}: noise has no meaning there: {why}; fix: leave "
                "out --input"
            )
        if lacking := _find_lacking_file(definition, name):
            raise UserError(f"--only {name}: {lacking} is missing, so there is nothing to compare")
    names = only or known.keys() - list_left_out(definition).keys()
    return {name: measure for name, measure in known.items() if name in names}


def measure_all(request: Request, measures: "Mapping[str, Measure]") -> Measured:
    """Make the task ready, and measure one after the other; a row is a name and its line."""
    from cepheid.measure.engine.turns import Subject, make_task, pick_create

    definition, asked, observer = request.definition, request.arguments, request.observer
    config, ranks = request.configure(), request.prepare_on_ranks()
    observer.tell("reference: building, compiling, warming up")
    create = pick_create(import_task(definition, "torch"))
    inputs = asked.input if definition.kind == "train" else NO_DATA
    task = make_task(config, ranks, create, inputs=inputs)
    implementation = task.implementation()
    observer.tell(_describe_implementation(implementation))
    # A display does most on a terminal; this one is not seen, and open until the process ends.
    unseen = request.open_display(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    settings = asked.overrides, asked.rounds
    subject = Subject(config, ranks, task, *settings, unseen.show_run, observer.count, inputs)
    rows = []
    facts = {"result": config.result_name, "implementation": implementation}
    facts["ranks"] = ranks.world_size
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


def _draw(path: Path, request: Request, measured: Measured) -> None:
    from cepheid.measure.studies.speed.figure import draw_speed  # with what only measuring needs

    draw_speed(path, request, measured)


STUDY = Study(
    "speed",
    choose_measurements,
    measure_all,
    columns=(
        Column("", lambda row: row[0]),
        Column("what", lambda row: row[1].what),
        Column("against", lambda row: row[1].against),
        Column("reference", lambda row: row[1].reference),
        Column("result", lambda row: row[1].result),
    ),
    figure=_draw,
    is_timed=True,
    has_ranks=True,
    others=(Study("list", Request.require_extras, list_measurements),),
    description=DESCRIPTION,
    examples=EXAMPLES,
    options=(
        *options.offer_benchmark(),
        Option("--list", "list what can be measured of this benchmark, and stop", bool),
        Option("--only WHAT", "one measurement; may be repeated (default: all but those on "
               "request)", default=[], more={"action": "append"}),
        options.offer_settings("a setting of the reference, as for `cepheid run`"),
        Option("--profile", "the same as --only profile", bool),
        options.offer_rounds(15),
        options.offer_input(REAL, ", then only --profile without --only"),
        options.DATA,
        *options.DEVICES,
        options.FIGURE,
        options.FILE,
    ),
)  # fmt: skip
