"""Measure how fast the reference is: the parts of ``cepheid measure speed``.

A benchmark may have measurements of its own: ``measure/studies/speed_by_benchmark/<name>.py`` then
has ``MEASUREMENTS``, names and functions like those here.
"""

import importlib
import importlib.util
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.own_process import run_alone
from cepheid.measure.engine.subject import (
    MIB,
    PLAIN,
    STEPS,
    Measure,
    Measurement,
    Row,
    Subject,
    describe_comparison,
    make_plain_task,
    make_ready_task,
    pick_create,
)
from cepheid.measure.engine.turns import (
    time_each,
    time_steps,
)
from cepheid.measure.studies import speed_by_benchmark
from cepheid.reference.run.config import configure
from cepheid.reference.run.execution import Execution
from cepheid.rules import definition as definitions
from cepheid.rules.definition import Block, Definition
from cepheid.rules.errors import UserError, did_you_mean
from cepheid.rules.events import Kind
from cepheid.rules.hyperparameters import EVAL_OFFSET

if TYPE_CHECKING:
    pass

BLOCK_STEPS = 50  # where what begins a block counts; blocks of a run have more
HARNESS_BLOCKS = 1  # many short turns, because the speed of a machine drifts within seconds
MEMORY_BLOCKS = 2
IMAGES_PER_TURN, MOST_REPETITIONS = 100, 10  # few images at a time take too little time to measure


def compare_steps(subject: Subject) -> Measurement:
    """Compare one training step with the plain version of the same network (plain.py)."""
    plain = make_plain_task(subject)
    compared = subject.compare(
        f"step of {subject.config.global_batch_size} samples",
        PLAIN,
        lambda: time_steps(plain, STEPS),
        lambda: time_steps(subject.task, STEPS),
    )
    return Measurement([describe_comparison(compared)], compared.as_json())


def measure_harness(subject: Subject) -> Measurement:
    """Compare the timed loop, with run log and display, with the bare loop over the same work."""
    from cepheid.measure.studies.speed.harness import (
        TimedLoop,
        shorten_definition,
        time_bare_loop,
        time_run_loop,
    )

    short = shorten_definition(subject.config.definition, HARNESS_BLOCKS)
    config = replace(subject.config, definition=short)
    loops: list[TimedLoop] = []

    def time_with_log_and_display() -> float:
        loops.append(time_run_loop(subject.task, config, subject.open_display(short)))
        return loops[-1].seconds

    compared = subject.compare(
        f"loop of {short.timing.max_samples:,} samples",
        "bare loop",
        lambda: time_bare_loop(subject.task, config),
        time_with_log_and_display,
    )
    share = statistics.median(loop.harness_share for loop in loops[1:])
    result = f"overhead {compared.overhead:+.2%}; outside the task's code {share:.2%}"
    facts = {**compared.as_json(), "share_outside_the_task": share}
    return Measurement([describe_comparison(compared, result)], facts)


def measure_profile(subject: Subject) -> Measurement:
    """Profile a training step by phase, and measure what harness and log add."""
    from cepheid.measure.engine.step_profiler import profile_steps
    from cepheid.measure.studies.speed.harness import shorten_definition, time_run_loop

    task, steps = subject.task, subject.rounds * STEPS
    batch = subject.config.global_batch_size
    task.model.train()
    task.step()
    profile = profile_steps(task, steps)
    # A run of as many steps, with its log and display, shows what these add.
    timing = replace(subject.config.definition.timing, eval_every_samples=steps * batch)
    short = shorten_definition(replace(subject.config.definition, timing=timing), 1)
    values = {**subject.config.hyperparameters, EVAL_OFFSET: 0}
    config = replace(subject.config, definition=short, hyperparameters=values)
    loop = time_run_loop(task, config, subject.open_display(short))
    shares = dict(profile.shares)
    shares["harness and log"] = loop.harness_seconds / (steps * profile.seconds)
    milliseconds = 1000 * profile.seconds
    row = Row(
        what=f"step of {batch} samples",
        reference=f"{milliseconds:,.1f} ms",
        result=", ".join(f"{phase} {share:.1%}" for phase, share in shares.items()),
    )
    return Measurement([row], {"milliseconds": milliseconds, "shares": shares})


def make_keras_task(subject: Subject) -> Any:
    """Create the task of the benchmark's ``keras_task.py``, ready, on as many threads."""
    from cepheid.reference.keras import backend as keras_backend

    threads = str(subject.task.implementation()["threads_per_rank"])
    config = replace(subject.config, framework="keras", execution=Execution(threads=threads))
    with keras_backend.start_ranks() as alone:
        return make_ready_task(import_task(config.definition, "keras").create, config, alone)


def compare_input(subject: Subject) -> Measurement:
    """Compare a step in Keras fed by tf.data with one on arrays that wait for it."""
    keras = make_keras_task(subject)
    keras.reads_ahead = True  # in galaxy_vae a run does not
    size = subject.config.global_batch_size

    def time_block() -> float:
        block = Block(1, keras.samples, keras.samples + BLOCK_STEPS * size)
        return time_each(lambda block: keras.train(block, lambda _: None), [block]) / BLOCK_STEPS

    compared = subject.compare(
        f"step of {size} samples in keras",
        "arrays, read when their turn comes",
        lambda: time_each(lambda _: float(keras.step()), range(BLOCK_STEPS)),
        time_block,
    )
    return Measurement(
        [describe_comparison(compared)],
        {**compared.as_json(), "keras": dict(keras.implementation())},
    )


def compare_frameworks(subject: Subject) -> Measurement:
    """Compare one training step in PyTorch with the same in Keras (keras_task.py)."""
    keras = make_keras_task(subject)
    facts = keras.implementation()
    compared = subject.compare(
        f"step of {subject.config.global_batch_size} samples",
        f"keras, {facts['precision']}, {facts['training_step']}",
        lambda: time_each(lambda _: float(keras.step()), range(STEPS)),
        lambda: time_steps(subject.task, STEPS),
    )
    return Measurement(
        [describe_comparison(compared)], {**compared.as_json(), "keras": dict(facts)}
    )


def compare_sampling(subject: Subject) -> Measurement:
    """Compare noise to latents with the plain version (plain.py), three numbers of images."""
    return _compare_generation(subject, lambda task, images: partial(task.sample, images))


def compare_decoding(subject: Subject) -> Measurement:
    """Compare latents to images with the plain version, three numbers of images."""

    def start_decoding(task: Any, images: int) -> Callable[[int], object]:
        latents = subject.task.sample(images, 0)  # the same for both sides
        return lambda turn: task.decode(latents)

    return _compare_generation(subject, start_decoding)


def compare_generation(subject: Subject) -> Measurement:
    """Compare noise to images with the plain version, three numbers of images."""
    return _compare_generation(
        subject, lambda task, images: lambda turn: task.decode(task.sample(images, turn))
    )


def _compare_generation(
    subject: Subject, start: Callable[[Any, int], Callable[[int], object]]
) -> Measurement:
    """Compare the fewest, some and the most images at a time.

    ``start(task, images)`` returns the function to time; it is called with 0, 1, ….
    """
    generation = subject.config.definition.generation
    assert generation is not None
    counts = generation.counts
    plain = make_plain_task(subject)
    rows, facts = [], {}
    for images in (counts[0], counts[(len(counts) - 1) // 2], counts[-1]):
        turns = range(min(MOST_REPETITIONS, max(1, IMAGES_PER_TURN // images)))
        compared = subject.compare(
            f"{images:,} images" if images > 1 else "1 image",
            PLAIN,
            partial(time_each, start(plain, images), turns),
            partial(time_each, start(subject.task, images), turns),
        )
        rows.append(describe_comparison(compared))
        facts[str(images)] = compared.as_json()
    return Measurement(rows, facts)


def measure_memory(subject: Subject) -> Measurement:
    """Measure the largest resident memory of a short run, in a process of its own."""
    definition = subject.config.definition
    peak_bytes = run_alone(
        measure_peak_bytes,
        definition.name,
        definition.scale,
        subject.overrides,
        subject.config.data_root,
        MEMORY_BLOCKS,
    )
    what = "each number of images once"
    if definition.generation is None:
        what = f"run of {MEMORY_BLOCKS} blocks"
    row = Row(what, f"peak {peak_bytes / MIB:,.0f} MiB")
    return Measurement([row], {"peak_resident_bytes": peak_bytes})


def measure_peak_bytes(
    name: str, scale: str, overrides: Sequence[str], data_root: Path, blocks: int
) -> int:
    """Make a short run in this process and return its largest resident memory in bytes.

    The run has ``blocks`` blocks, or generates each number of images once.
    """
    from cepheid.measure.studies.speed.harness import shorten_definition
    from cepheid.reference.machine.memory import read_peak_resident_bytes
    from cepheid.reference.run.log import RunLogWriter
    from cepheid.reference.run.loops import run_task
    from cepheid.reference.torch.ranks.distributed import start_ranks

    short = shorten_definition(definitions.load(name, scale), blocks)
    config = configure(short, division="open", overrides=overrides, data_root=data_root, seed=1)
    with start_ranks() as ranks:
        task = pick_create(import_task(short, "torch"))(config, ranks)
        run_task(task, config, RunLogWriter(None))
    return read_peak_resident_bytes()


def measure_beside_work(subject: Subject) -> Measurement:
    """Work beside competing processes on some or all processors, against a fair share of them."""
    from cepheid.measure.studies.speed.beside_work import compare_with_fair_share

    definition, root = subject.config.definition, subject.config.data_root
    with subject.count("alone, then beside other work", "paces") as on_pace:
        found = compare_with_fair_share(
            definition.name, definition.scale, subject.overrides, root, on_pace
        )
    rows = [
        Row(
            what=f"beside a competitor on {case.competitors} of {found.processors} processors, "
            f"{case.what}",
            against=f"alone: {found.alone}",
            reference=str(case.pace),
            result=f"{found.find_loss(case):.2f} times the time of a fair share",
        )
        for case in found.cases
    ]
    return Measurement(rows, found.as_json())


MEASUREMENTS: Mapping[Kind, Mapping[str, Measure]] = {
    "train": {
        "step": compare_steps,
        "profile": measure_profile,
        "harness": measure_harness,
        "framework": compare_frameworks,
        "input": compare_input,
        "memory": measure_memory,
        "beside_work": measure_beside_work,
    },
    "generate": {
        "sampling": compare_sampling,
        "decoding": compare_decoding,
        "generation": compare_generation,
        "memory": measure_memory,
        "beside_work": measure_beside_work,
    },
}
"""What can be measured of every benchmark of a kind."""
ON_REQUEST = ("profile", "input", "beside_work")
"""What is measured only where --only names it."""
IN_KERAS = ("framework", "input")
AGAINST_PLAIN = ("step", "sampling", "decoding", "generation")


def find_measurements(definition: Definition) -> Mapping[str, Measure]:
    """Return all measurements of a benchmark: those of its kind, then its own."""
    own: Mapping[str, Measure] = getattr(_import_own(definition), "MEASUREMENTS", {})
    return {**MEASUREMENTS[definition.kind], **own}


def pick_measurements(definition: Definition, only: Sequence[str]) -> Mapping[str, Measure]:
    """Return the measurements that ``only`` names; without names all that are not on request.

    Raises UserError for a name that the benchmark does not have.
    """
    known = find_measurements(definition)
    for name in only:
        if name not in known:
            raise UserError(
                f"--only {name}: {definition.name} has no such measurement"
                f"{did_you_mean(name, known)} (all: {', '.join(known)})"
            )
        if lacking := _find_lacking_file(definition, name):
            raise UserError(f"--only {name}: {lacking} is missing, so there is nothing to compare")
    names = only or known.keys() - list_left_out(definition).keys()
    return {name: measure for name, measure in known.items() if name in names}


def list_left_out(definition: Definition) -> Mapping[str, str]:
    """Return the measurements that are made only where --only names them, and why."""
    own: Sequence[str] = getattr(_import_own(definition), "ON_REQUEST", ())
    reasons = dict.fromkeys((*ON_REQUEST, *own), "only on request")
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


def _import_own(definition: Definition) -> Any:
    """Import the module of a benchmark's own measurements, if it has one."""
    name = f"{speed_by_benchmark.__name__}.{definition.name}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None
