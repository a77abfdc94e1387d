"""`cepheid measure speed`: how fast the reference is on this machine, against simpler code."""

import argparse
import importlib.util
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reference.run.frameworks import find_task_module, import_task
from reference.run.placement import end_rank, placement
from rules import definition
from rules.definition import Definition
from rules.errors import UserError, did_you_mean
from rules.events import Kind
from tools import writing
from tools.arguments import add_data_option, add_set_option, command_parser
from tools.cli import EXIT_FINE, run_tool

if TYPE_CHECKING:
    from reference.measure.speed import Comparison, Timing
    from reference.run.config import RunConfig
    from reference.run.ranks import Ranks
    from reference.torch.distributed import TorchRanks

DESCRIPTION = """\
Measure on this machine, each in one process in which the two sides take turns:

  step     one training step of the reference, as a run does it (read, reorient, forwards,
           backwards, clip, update), against the same network as one writes it first: eager,
           float32, torch's defaults (benchmarks/<name>/plain.py)
  ledger   (with --profile, which measures nothing else) where the time of a step of the reference
           goes: data, forward, backward, communication (not hidden behind the backward pass),
           update, and what the harness and its log add
  harness  the timed loop with run log and progress display against the bare loop over the same
           steps and evaluations: what the harness costs; and the share of the timed loop that was
           not spent in the task's own code, which other work on the machine moves far less
  drawing  noise-free images of simulated galaxies against one GalSim drawImage per band (only
           for benchmarks of galaxies)
  framework  one training step of the reference in PyTorch against the same benchmark's in Keras on
           TensorFlow (keras_task.py), each as it computes fastest here, on as many threads (only
           where the benchmark and this installation have both)
  memory   the largest resident memory of a short run, in a process of its own

and of a benchmark that generates, for three numbers of images at a time, against the same networks
as one writes them first (benchmarks/<name>/plain.py):

  sampling    noise to latents
  decoding    latents to images
  generation  both together
  memory      as above

Compare the ratio, which other work on the machine hardly moves, rather than times. The brackets
hold the middle half of the measurements.
"""
EXAMPLES = """\
examples:
  cepheid measure speed galaxy_shape --scale mini
  cepheid measure speed galaxy_shape --scale mini --only step --set precision=fp32 --rounds 30
  cepheid measure speed galaxy_shape --scale mini --output speed.json
  torchrun --standalone --nproc-per-node 2 -m tools.measure speed resnet50 --profile
  cepheid measure speed galaxy_generation --only sampling --only decoding
"""
STEPS = 10  # between two turns
PLAIN = "plain eager float32"
HARNESS_BLOCKS = 1  # many short turns: a machine's speed drifts within seconds
GALAXIES_PER_TURN = 20
MEMORY_BLOCKS = 2
MIB = 1024**2
HOW = ("training_step", "sampling", "decoding")  # what implementations tell of their code

GENERATED_IN_A_TURN = 100  # of few images at a time, which take no time to speak of
REPEATED_AT_MOST = 10

Row = Mapping[str, str]
"""A line of the table."""


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid measure speed`."""
    made = command_parser("measure speed", DESCRIPTION, EXAMPLES)
    add = made.add_argument
    add("benchmark", help="which benchmark")
    add("--scale", default="mini", help="mini (default) or full")
    add(
        "--only",
        metavar="WHAT",
        action="append",
        help=f"one of {', '.join(MEASUREMENTS['train'])}, or, of generation, "
        f"{', '.join(MEASUREMENTS['generate'])}; may be given again (default: all)",
    )
    add_set_option(made, "as for `cepheid run`; it holds for the reference")
    add("--profile", action="store_true", help="the ledger of a step, and nothing else")
    add("--rounds", type=int, default=15, metavar="N", help="turns of each side (default: 15)")
    add_data_option(made)
    add("--output", type=Path, metavar="FILE", help="write all measurements as JSON")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table."""
    arguments = parser().parse_args(argv)
    chosen = definition.load(arguments.benchmark, arguments.scale)
    has_galaxies = chosen.data["generator"] == "galaxies"
    known = MEASUREMENTS[chosen.kind]
    usual = [name for name in known if name != "framework" or _has_keras(chosen)]
    usual = [name for name in usual if (has_galaxies or name != "drawing") and name != "ledger"]
    if arguments.profile and (arguments.only or "ledger" not in known):
        raise UserError("--profile is for the ledger of a training step alone: leave out --only")
    wanted: Sequence[str] = ["ledger"] if arguments.profile else arguments.only or usual
    for name in wanted:
        if name not in known:
            raise UserError(
                f"--only {name}: nothing of that name{did_you_mean(name, known)} is measured of "
                f"{chosen.name} (all: {', '.join(known)})"
            )
        if name == "framework":
            find_task_module(chosen, "keras")  # refuses a benchmark that is not written in it
        if name == "drawing" and not has_galaxies:
            raise UserError(f"--only drawing: {chosen.name} has no galaxies")
    if arguments.rounds < 3:
        raise UserError(f"--rounds {arguments.rounds}: expected 3 or more, for a spread")
    _measure(chosen, wanted, arguments)
    if placement().world_size > 1:
        end_rank(EXIT_FINE)
    return EXIT_FINE


@dataclass(frozen=True)
class Subject:
    """The reference's task, ready to train, and how it is to be measured."""

    config: "RunConfig"
    ranks: "TorchRanks"
    task: Any
    overrides: Sequence[str]
    rounds: int


def _measure(chosen: Definition, wanted: Sequence[str], arguments: argparse.Namespace) -> None:
    load = os.getloadavg()[0]

    from rich.console import Console
    from tabulate import tabulate

    from reference.run.config import configure
    from reference.torch.distributed import start_ranks
    from tools.progress import prepare_data

    config = configure(chosen, overrides=arguments.overrides, data_root=arguments.data, seed=1)
    with start_ranks() as ranks:
        console = Console(quiet=not ranks.is_first, highlight=False, soft_wrap=True)
        if ranks.is_first:
            prepare_data(chosen, config.data_root, console)
        ranks.barrier()
        console.print("reference: building, compiling, warming up")
        task = _ready(import_task(chosen, "torch"), config, ranks)
        subject = Subject(config, ranks, task, arguments.overrides, arguments.rounds)
        told = subject.task.implementation()
        console.print(_how(told), markup=False)
        rows, measured = [], {}
        for name in wanted:
            found, measured[name] = MEASUREMENTS[chosen.kind][name](subject)
            for row in found:
                console.print(f"{name}: {row['what']}: {row['result']}")
                rows.append({"": name, **row})
    console.print(f"\n{tabulate(rows, headers='keys', disable_numparse=True)}", markup=False)
    if load > 0.5:
        console.print(
            f"\nother work was running here (load {load:.1f} before this began): believe no times, "
            "and ratios with care"
        )
    if arguments.output and ranks.is_first:
        about = {"result": config.result_name, "implementation": told, "load_before": load}
        writing.replace(arguments.output, json.dumps({**about, **measured}, indent=1) + "\n")
        console.print(f"written: {arguments.output}", markup=False)


def _ready(module: Any, config: "RunConfig", ranks: "Ranks") -> Any:
    task = getattr(module, "create_for_timing", module.create)(config, ranks)
    task.build()
    if asked := config.definition.generation:
        task.warm_up(asked.warm_up_images)
    else:
        task.warm_up()
        task.open_data()
    return task


def _how(told: Mapping[str, Any]) -> str:
    parts = [told["framework"], told["device"], f"{told['threads_per_rank']} threads"]
    parts += [told["precision"], *(told[key] for key in HOW if key in told)]
    reasons = [f"  {key}: {text}" for key, text in told["execution"]["because"].items()]
    return "\n".join(["  " + ", ".join(parts), *reasons])


# What is measured: each returns rows of the table, and all about them for the JSON file ----------

Measured = tuple[Sequence[Row], Mapping[str, Any]]


def _plain(subject: Subject) -> Any:
    """The same benchmark as one writes it first, ready, on as many threads."""
    name = subject.config.definition.name
    if not (definition.BENCHMARKS / name / "plain.py").is_file():
        raise UserError(f"benchmarks/{name}/plain.py is missing: nothing to compare with")
    module = importlib.import_module(f"benchmarks.{name}.plain")
    threads = str(subject.task.implementation()["threads_per_rank"])
    as_first_written = replace(
        subject.config.execution, precision="fp32", compile="off", threads=threads
    )
    as_written = replace(subject.config, execution=as_first_written)
    return _ready(module, as_written, subject.ranks)


def _step(subject: Subject) -> Measured:
    from reference.measure.speed import in_turns, step_seconds

    plain = _plain(subject)
    compared = in_turns(
        f"step of {subject.config.global_batch_size} samples",
        subject.rounds,
        {
            PLAIN: lambda: step_seconds(plain, STEPS),
            "reference": lambda: step_seconds(subject.task, STEPS),
        },
    )
    return [_row(compared, f"{compared.ratio:.2f} times as fast")], compared.as_json()


def _harness(subject: Subject) -> Measured:
    from rich.console import Console

    from reference.measure.speed import (
        TimedLoop,
        bare_loop_seconds,
        in_turns,
        shortened,
        timed_loop,
    )
    from tools.progress import RunDisplay

    short = shortened(subject.config.definition, HARNESS_BLOCKS)
    config = replace(subject.config, definition=short)
    loops: list[TimedLoop] = []
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        terminal = Console(file=nowhere, force_terminal=True)  # there the display does most

        def with_log_and_display() -> float:
            loops.append(timed_loop(subject.task, config, RunDisplay(short, terminal)))
            return loops[-1].seconds

        compared = in_turns(
            f"loop of {short.timing.max_samples:,} samples",
            subject.rounds,
            {
                "bare loop": lambda: bare_loop_seconds(subject.task, config),
                "with log and display": with_log_and_display,
            },
        )
    share = statistics.median(loop.harness_share for loop in loops[1:])
    result = f"overhead {compared.overhead:+.2%}; outside the task's code {share:.2%}"
    return [_row(compared, result)], {**compared.as_json(), "share_outside_the_task": share}


def _ledger(subject: Subject) -> Measured:
    """Of some steps one by one; then a loop of as many, with log and display, tells what these
    add."""
    from rich.console import Console

    from reference.measure.speed import shortened, timed_loop
    from reference.measure.step_profiler import StepProfiler
    from reference.torch.task import ignore_phase
    from tools.progress import RunDisplay

    task, steps = subject.task, subject.rounds * STEPS
    batch = subject.config.global_batch_size
    task.model.train()
    task.step()
    task.phase = ledger = StepProfiler(task.synchronize)
    task.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        task.step()
    task.synchronize()
    total_seconds = time.perf_counter() - started
    task.phase = ignore_phase
    timing = replace(subject.config.definition.timing, eval_every_samples=steps * batch)
    short = shortened(replace(subject.config.definition, timing=timing), 1)
    values = {**subject.config.hyperparameters, definition.EVAL_OFFSET: 0}
    config = replace(subject.config, definition=short, hyperparameters=values)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        display = RunDisplay(short, Console(file=nowhere, force_terminal=True))
        loop = timed_loop(task, config, display)
    shares = dict(ledger.shares(total_seconds))
    shares["harness and log"] = loop.harness_seconds / total_seconds
    milliseconds = 1000 * total_seconds / steps
    told = [f"{phase} {share:.1%}" for phase, share in shares.items()]
    row = {
        "what": f"step of {batch} samples",
        "reference": f"{milliseconds:,.1f} ms",
        "result": ", ".join(told),
    }
    return [row], {"milliseconds": milliseconds, "shares": shares}


def _framework(subject: Subject) -> Measured:
    from reference.keras import backend as keras_backend
    from reference.measure.speed import in_turns, seconds_each, step_seconds
    from reference.run.config import Execution

    threads = str(subject.task.implementation()["threads_per_rank"])
    config = replace(subject.config, framework="keras", execution=Execution(threads=threads))
    with keras_backend.start_ranks() as alone:
        keras = _ready(import_task(config.definition, "keras"), config, alone)
    told = keras.implementation()
    compared = in_turns(
        f"step of {config.global_batch_size} samples",
        subject.rounds,
        {
            f"keras, {told['precision']}, {told['training_step']}": lambda: seconds_each(
                lambda _: float(keras.step()), range(STEPS)
            ),
            "reference": lambda: step_seconds(subject.task, STEPS),
        },
    )
    about = {**compared.as_json(), "keras": dict(told)}
    return [_row(compared, f"{compared.ratio:.2f} times as fast")], about


def _has_keras(chosen: Definition) -> bool:
    installed = importlib.util.find_spec("tensorflow") and importlib.util.find_spec("keras")
    return bool(installed) and (definition.BENCHMARKS / chosen.name / "keras_task.py").is_file()


def _drawing(subject: Subject) -> Measured:
    """The same galaxies in both turns; the round that does not count fills the tables."""
    from reference.data.galaxies import stamps as galaxies
    from reference.measure.speed import in_turns, seconds_each

    parameters = galaxies.parameters_of(subject.config.definition.data)
    shown = [galaxies.galaxy_at(parameters, index) for index in range(GALAXIES_PER_TURN)]
    compared = in_turns(
        f"galaxy of {len(parameters.bands)} bands, without noise",
        subject.rounds,
        {
            "drawImage per band": lambda: seconds_each(
                lambda galaxy: galaxies.drawn_by_galsim(parameters, galaxy), shown
            ),
            "reference": lambda: seconds_each(
                lambda galaxy: galaxies.noise_free_electrons(parameters, galaxy), shown
            ),
        },
    )
    return [_row(compared, f"{compared.ratio:.1f} times as fast")], compared.as_json()


def _sampling(subject: Subject) -> Measured:
    return _against_plain(subject, lambda task, images: lambda turn: task.sample(images, turn))


def _decoding(subject: Subject) -> Measured:
    """Both decode the same latents."""

    def decode(task: Any, images: int) -> Callable[[int], object]:
        latents = subject.task.sample(images, 0)
        return lambda turn: task.decode(latents)

    return _against_plain(subject, decode)


def _generation(subject: Subject) -> Measured:
    return _against_plain(
        subject, lambda task, images: lambda turn: task.decode(task.sample(images, turn))
    )


def _against_plain(
    subject: Subject, work: Callable[[Any, int], Callable[[int], object]]
) -> Measured:
    """``work(task, images)`` of the fewest, some and the most images at a time; the function that
    it returns is called with 0, 1, …."""
    from reference.measure.speed import in_turns, seconds_each

    asked = subject.config.definition.generation
    assert asked is not None
    plain = _plain(subject)
    rows, about = [], {}
    for images in (asked.counts[0], asked.counts[(len(asked.counts) - 1) // 2], asked.counts[-1]):
        turns = range(min(REPEATED_AT_MOST, max(1, GENERATED_IN_A_TURN // images)))
        plainly, as_ever = work(plain, images), work(subject.task, images)
        compared = in_turns(
            f"{images:,} images" if images > 1 else "1 image",
            subject.rounds,
            {
                PLAIN: partial(seconds_each, plainly, turns),
                "reference": partial(seconds_each, as_ever, turns),
            },
        )
        rows.append(_row(compared, f"{compared.ratio:.2f} times as fast"))
        about[str(images)] = compared.as_json()
    return rows, about


def _memory(subject: Subject) -> Measured:
    """In a fresh process, which has the whole of a run to do and nothing else."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        chosen = subject.config.definition
        asked = (chosen.name, chosen.scale, subject.overrides, subject.config.data_root)
        peak_bytes = pool.apply(peak_memory_bytes, (*asked, MEMORY_BLOCKS))
    what = "each number of images once" if chosen.generation else f"run of {MEMORY_BLOCKS} blocks"
    row = {"what": what, "result": f"peak {peak_bytes / MIB:,.0f} MiB"}
    return [row], {"peak_resident_bytes": peak_bytes}


def peak_memory_bytes(
    name: str, scale: str, overrides: Sequence[str], data_root: Path, blocks: int
) -> int:
    """The largest resident memory of this process when it has done a run of so many blocks, or of
    each number of images once."""
    from reference.machine.memory import peak_resident_bytes
    from reference.measure.speed import shortened
    from reference.run.config import configure
    from reference.run.log import RunLogWriter
    from reference.run.loops import run_task
    from reference.torch.distributed import start_ranks

    short = shortened(definition.load(name, scale), blocks)
    config = configure(short, overrides=overrides, data_root=data_root, seed=1)
    with start_ranks() as ranks:
        module = import_task(short, "torch")
        task = getattr(module, "create_for_timing", module.create)(config, ranks)
        run_task(task, config, RunLogWriter(None))
    return peak_resident_bytes()


MEASUREMENTS: Mapping[Kind, Mapping[str, Callable[[Subject], Measured]]] = {
    "train": {
        "step": _step,
        "ledger": _ledger,
        "harness": _harness,
        "framework": _framework,
        "drawing": _drawing,
        "memory": _memory,
    },
    "generate": {
        "sampling": _sampling,
        "decoding": _decoding,
        "generation": _generation,
        "memory": _memory,
    },
}


def _row(compared: "Comparison", result: str) -> Row:
    return {
        "what": compared.what,
        "against": f"{compared.baseline.label}: {_spread(compared.baseline)}",
        "reference": _spread(compared.reference),
        "result": result,
    }


def _spread(timing: "Timing") -> str:
    first, third = (1000 * seconds for seconds in timing.quartiles_seconds)
    digits = 1 if first < 1000 else 0
    median = f"{1000 * timing.median_seconds:,.{digits}f}"
    return f"{median} ms ({first:,.{digits}f} to {third:,.{digits}f})"


if __name__ == "__main__":
    run_tool(main)
