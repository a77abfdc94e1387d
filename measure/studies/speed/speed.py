"""How fast the reference is on this machine, against simpler code: `cepheid measure speed`."""

import importlib
import importlib.util
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.figures import OURS, REPORTED, draw_figure, draw_shares, find_bars
from cepheid.measure.engine.noise import NO_DATA, REAL, SYNTHETIC
from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.study import Column, Measured, Request, Study
from cepheid.rules import definition as definitions
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from cepheid.measure.engine.turns import Measure

PROFILE = "profile"
USUAL = (
    "step", "harness", "framework", "memory", "sampling", "decoding", "generation", "drawing",
)  # fmt: skip
"""What is measured without --only; all else is measured where it is named."""
IN_KERAS = ("framework", "input")
ON_A_DATASET = {
    **dict.fromkeys(("harness", "memory"), "it makes a run, which evaluates"),
    **dict.fromkeys(IN_KERAS, "Keras reads the dataset itself"),
    **dict.fromkeys(("bucketing", "variants"), "sentences of noise have one length"),
    "formats": "it trains until something is learned",
    "whole_run": "stale factors follow from what is learned",
}
"""What means nothing on noise, and why."""
SHARE_COLOUR = "C4"
AGAINST_PLAIN = ("step", "sampling", "decoding", "generation")
CODE_FACTS = ("training_step", "sampling", "decoding")
"""The facts about an implementation that say how its code is compiled."""


def find_measurements(definition: Definition) -> "Mapping[str, Measure]":
    """Return all measurements of a benchmark: those of its kind, then its own."""
    from cepheid.measure.studies.speed.parts import DRAWING, MEASUREMENTS
    from cepheid.measure.studies.speed.profiles import measure_profile
    from cepheid.measure.studies.speed.sharing import BY_BENCHMARK

    of_kind = MEASUREMENTS[definition.kind]
    if definition.kind == "train":  # the list begins with the two of a step
        of_kind = {"step": of_kind["step"], PROFILE: measure_profile, **of_kind}
    own: Mapping[str, Measure] = {}
    if definition.name in ("gnmt", "kfac"):  # whose modules import what only they need
        own = importlib.import_module(f"{__package__}.{definition.name}").MEASUREMENTS
    elif definition.data.get("generator") == "galaxies" and definition.kind == "train":
        own = DRAWING
    return {**of_kind, **own, **BY_BENCHMARK.get(definition.name, {})}


def list_left_out(definition: Definition) -> Mapping[str, str]:
    """Return the measurements that are made only where --only names them, and why."""
    known = find_measurements(definition)
    reasons = dict.fromkeys(known.keys() - set(USUAL), "only on request")
    if not (importlib.util.find_spec("tensorflow") and importlib.util.find_spec("keras")):
        reasons |= dict.fromkeys(IN_KERAS, "needs the extra keras")
    for name in known:
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
    if asked.at is not None:
        _refuse_place(definition, asked)
    if asked.input == REAL:
        return pick_measurements(definition, [PROFILE] if asked.profile else asked.only)
    request.require_training(", so it has no data that noise could replace; leave out --input")
    return pick_measurements(definition, asked.only or [PROFILE], ON_A_DATASET)


def _refuse_place(definition: Definition, asked: Any) -> None:
    """Raise UserError for a place of the training where no step can be taken."""
    last = definition.timing.max_samples
    if asked.input == REAL:
        why = f"real data are read from the start; fix: add --input {SYNTHETIC}"
        raise UserError(f"--at {asked.at}: {why}")
    if asked.at >= last:
        why = f"a training ends after {last:,} samples; fix: choose fewer"
        raise UserError(f"--at {asked.at}: {why}")


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
    task = make_task(config, ranks, create, inputs=inputs, at=asked.at)
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


def draw_speed(path: Path, request: Request, measured: Measured) -> None:
    """Draw each measurement that has times or shares, side by side.

    Raises UserError where none has, and where the file cannot be written.
    """
    found = {name: facts for name, facts in measured.facts.items() if isinstance(facts, Mapping)}
    arms = {name: list_arms(facts) for name, facts in found.items()}
    shares = {name: facts["shares"] for name, facts in found.items() if "kernels" in facts}
    arms = {name: of_arms for name, of_arms in arms.items() if of_arms}
    if not arms and not shares:
        raise UserError("--figure: none of these measurements has times to draw; leave it out")
    definition = request.definition
    with draw_figure(path, columns=len(arms) + len(shares)) as (figure, axes):
        for each, (name, of_arms) in zip(axes, arms.items(), strict=False):
            _draw_arms(each, name, of_arms)
        for each, (name, of_phases) in zip(axes[len(arms) :], shares.items(), strict=True):
            draw_shares(each, [*of_phases.values()], [*of_phases], SHARE_COLOUR)
            each.set(title=name, xlabel="% of a profiled step")
        count = request.ranks.world_size if request.ranks else measured.facts["ranks"]
        ranks = f"{count} rank{'s' if count > 1 else ''}"
        figure.suptitle(f"{definition.name}, {definition.scale} scale, {ranks}")


def list_arms(facts: Mapping[str, Any]) -> Mapping[str, Sequence[float]]:
    """Return the seconds of each arm of a measurement, turn by turn; empty where it has none."""
    sides = [facts.get("baseline"), facts.get("reference")]
    if all(isinstance(side, Mapping) for side in sides):
        return {side["label"]: side["seconds"] for side in sides if side}
    return {
        name: each["seconds"]
        for name, each in facts.items()
        if isinstance(each, Mapping) and isinstance(each.get("seconds"), list | tuple)
    }


def _draw_arms(axes: Any, name: str, arms: Mapping[str, Sequence[float]]) -> None:
    from cepheid.measure.engine.turns import find_middle_half

    places, spreads = range(len(arms)), []
    for seconds in arms.values():
        low, high = find_middle_half(seconds)
        spreads.append((1000 * statistics.median(seconds), 1000 * low, 1000 * high))
    look = {"color": OURS, "ecolor": REPORTED, "capsize": 3}
    axes.barh(places, [middle for middle, *_ in spreads], xerr=find_bars(spreads), **look)
    axes.set_yticks(places, list(arms))
    axes.invert_yaxis()
    axes.set(title=name, xlabel="ms of a step: medians, middle half")


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
    figure=draw_speed,
    is_timed=True,
    has_ranks=True,
    others=(Study("list", Request.require_extras, list_measurements),),
    **read_command("speed"),
)
