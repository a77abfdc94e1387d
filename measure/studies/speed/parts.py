"""The measurements of `cepheid measure speed` that every benchmark of a kind has."""

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.own_process import run_alone
from cepheid.measure.engine.turns import (
    MIB,
    PLAIN,
    STEPS,
    Measure,
    Measurement,
    Row,
    Sides,
    Subject,
    configure_open,
    fit_steps,
    format_timing,
    make_plain_task,
    make_task,
    pick_create,
    time_each,
    time_steps,
)
from cepheid.reference.data.verification import DataRead
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.run.log import RunLogWriter
from cepheid.reference.run.progress import OnProgress
from cepheid.reference.run.train import run
from cepheid.rules import definition as definitions
from cepheid.rules.definition import Block, Definition
from cepheid.rules.events import Kind

UNREACHABLE = 1e9
"""A quality target beyond every metric, so that the loop spends its whole budget."""


@dataclass(frozen=True)
class TimedLoop:
    """The seconds from ``run_start`` to ``run_stop``, and those outside the task's own code."""

    seconds: float
    harness_seconds: float

    @property
    def harness_share(self) -> float:
        """The share of the loop that was spent outside the task's own code."""
        return self.harness_seconds / self.seconds


def time_run_loop(
    task: Any, config: RunConfig, display: AbstractContextManager[OnProgress]
) -> TimedLoop:
    """Time the steps and evaluations of a run as ``train.run`` does them, with log and display."""
    task.samples = 0
    with tempfile.TemporaryDirectory() as folder, display as on_progress:
        log = RunLogWriter(Path(folder) / "result_0.txt")
        initialised: Any = InitialisedTask(task)
        run(config.definition, initialised, config, log, on_progress)
        seconds = time.perf_counter() - initialised.start
        log.close()
        return TimedLoop(seconds, seconds - initialised.task_seconds)


class InitialisedTask:
    """A task that is already built and has its data open, so that only the loop is left to do.

    ``start`` is when the loop began, ``task_seconds`` the time spent in the task since then. What
    is not timed here is the task's own.
    """

    def __init__(self, task: Any) -> None:
        self.task = task
        self.start = math.nan
        self.task_seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def do_nothing(self) -> int:
        """Do nothing; return 0 parameters."""
        return 0

    drop_caches = build = warm_up = do_nothing

    def open_data(self) -> None:
        """Start the clock: the timed part of a run begins here."""
        self.task_seconds = 0.0
        self.start = time.perf_counter()

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """Train the task, and do not count the time that ``on_samples`` takes."""

        def time_on_samples(samples: int) -> None:
            before = time.perf_counter()
            on_samples(samples)
            self.task_seconds -= time.perf_counter() - before

        with self._count_time():
            loss: float = self.task.train(block, time_on_samples)
        return loss

    def evaluate(self) -> dict[str, float]:
        """Evaluate the task."""
        with self._count_time():
            quality: dict[str, float] = self.task.evaluate()
        return quality

    def synchronize(self) -> None:
        """Wait for the device of the task."""
        with self._count_time():
            self.task.synchronize()

    @contextmanager
    def _count_time(self) -> Iterator[None]:
        before = time.perf_counter()
        yield
        self.task_seconds += time.perf_counter() - before

    def digest_data(self) -> DataRead:
        """Return the digest that the task names; no run is made here."""
        return DataRead(self.task.data_digest)


def shorten_definition(definition: Definition, blocks: int) -> Definition:
    """Return the definition with unreachable targets and a budget of ``blocks`` blocks.

    One that generates makes each of its numbers of images once.
    """
    if generation := definition.generation:
        once = replace(generation, repetitions=(1,) * len(generation.counts))
        return replace(definition, generation=once)
    quality = tuple(
        replace(target, target=-UNREACHABLE if target.better == "lower" else UNREACHABLE)
        for target in definition.quality
    )
    timing = replace(definition.timing, max_samples=blocks * definition.timing.eval_every_samples)
    return replace(definition, quality=quality, timing=timing)


BLOCK_STEPS = 50  # where what begins a block counts; blocks of a run have more
HARNESS_BLOCKS = 1  # many short turns, because the speed of a machine drifts within seconds
MEMORY_BLOCKS = 2
GALAXIES = 20  # of each turn
IMAGES_PER_TURN, MOST_REPETITIONS = 100, 10  # few images at a time take too little time to measure


def compare_steps(subject: Subject) -> Measurement:
    """Compare one training step with the plain version of the same network (plain.py)."""
    plain = make_plain_task(subject)
    steps = min(fit_steps(task, STEPS) for task in (plain, subject.task))
    slow, fast = (partial(time_steps, task, steps) for task in (plain, subject.task))
    what = f"step of {subject.config.global_batch_size} samples"
    return subject.measure(Sides(what, PLAIN, slow, fast, timed=True))


def measure_harness(subject: Subject) -> Measurement:
    """Measure what a run spends outside the task's own code: timed loop, run log and display."""
    short = shorten_definition(subject.config.definition, HARNESS_BLOCKS)
    config = replace(subject.config, definition=short)
    loops: list[TimedLoop] = []

    def time_loop() -> float:
        loops.append(time_run_loop(subject.task, config, subject.open_display(short)))
        return loops[-1].seconds

    what = f"loop of {short.timing.max_samples:,} samples"
    (timing,) = subject.time(what, {"loop": time_loop})
    share = statistics.median(loop.harness_share for loop in loops[1:])
    row = Row(what, f"outside the task's code {share:.2%}", format_timing(timing))
    facts = {"loop": {"seconds": timing.seconds}, "share_outside_the_task": share}
    return Measurement([row], facts)


def make_keras_task(subject: Subject) -> Any:
    """Create the task of the benchmark's ``keras_task.py``, ready, on as many threads."""
    from cepheid.reference.keras import backend as keras_backend

    threads = str(subject.task.implementation()["threads_per_rank"])
    config = replace(subject.config, framework="keras", execution=Execution(threads=threads))
    with keras_backend.start_ranks() as alone:
        return make_task(config, alone)


def compare_input(subject: Subject) -> Measurement:
    """Compare a step in Keras fed by tf.data with one on arrays that wait for it."""
    keras = make_keras_task(subject)
    keras.reads_ahead = True  # in galaxy_vae a run does not
    size = subject.config.global_batch_size

    def time_block() -> float:
        block = Block(1, keras.samples, keras.samples + BLOCK_STEPS * size)
        return time_each(lambda block: keras.train(block, lambda _: None), [block]) / BLOCK_STEPS

    what, slow = f"step of {size} samples in keras", partial(_time_keras, keras, BLOCK_STEPS)
    sides = Sides(what, "arrays, read when their turn comes", slow, time_block, timed=True)
    measured = subject.measure(sides)
    return replace(measured, facts={**measured.facts, "keras": dict(keras.implementation())})


def compare_frameworks(subject: Subject) -> Measurement:
    """Compare one training step in PyTorch with the same in Keras (keras_task.py), each its way."""
    keras = make_keras_task(subject)
    facts = keras.implementation()
    what = f"step of {subject.config.global_batch_size} samples"
    name = f"keras, {facts['precision']}, {facts['training_step']}"
    slow, fast = partial(_time_keras, keras, STEPS), partial(time_steps, subject.task, STEPS)
    measured = subject.measure(Sides(what, name, slow, fast, timed=True))
    return replace(measured, facts={**measured.facts, "keras": dict(facts)})


def _time_keras(task: Any, steps: int) -> float:
    return time_each(lambda _: float(task.step()), range(steps))


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
    all_sides = {}
    for images in (counts[0], counts[(len(counts) - 1) // 2], counts[-1]):
        turns = range(min(MOST_REPETITIONS, max(1, IMAGES_PER_TURN // images)))
        slow, fast = (
            partial(time_each, start(task, images), turns) for task in (plain, subject.task)
        )
        what = f"{images:,} images" if images > 1 else "1 image"
        all_sides[str(images)] = Sides(what, PLAIN, slow, fast, timed=True)
    return subject.measure_all(all_sides)


def compare_drawing(subject: Subject) -> Measurement:
    """Compare noise-free images of galaxies with one GalSim drawImage per band."""
    from cepheid.reference.data import galaxies  # needs the extra galsim

    parameters = galaxies.parameters_of(subject.config.definition.data)
    # The same galaxies in each turn: the round that does not count fills the tables.
    some = [galaxies.draw_galaxy(parameters, index) for index in range(GALAXIES)]
    slow, fast = (
        partial(time_each, partial(draw, parameters), some)
        for draw in (galaxies.draw_with_galsim, galaxies.compute_electrons)
    )
    what = f"galaxy of {len(parameters.bands)} bands, without noise"
    return subject.measure(Sides(what, "drawImage per band", slow, fast, timed=True))


def measure_memory(subject: Subject) -> Measurement:
    """Measure the largest resident memory of a short run, in a process of its own."""
    definition = subject.config.definition
    request = definition.name, definition.scale, subject.overrides, subject.config.data_root
    peak_bytes = run_alone(measure_peak_bytes, *request, MEMORY_BLOCKS)
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
    from cepheid.reference.machine.hardware import read_peak_resident_bytes
    from cepheid.reference.run.log import RunLogWriter
    from cepheid.reference.run.task import run_task
    from cepheid.reference.torch.ranks.distributed import start_ranks

    short = shorten_definition(definitions.load(name, scale), blocks)
    config = configure_open(short, overrides=overrides, data_root=data_root)
    with start_ranks() as ranks:
        task = pick_create(import_task(short, "torch"))(config, ranks)
        run_task(task, config, RunLogWriter(None))
    return read_peak_resident_bytes()


MEASUREMENTS: Mapping[Kind, Mapping[str, Measure]] = {
    "train": {
        "step": compare_steps,
        "harness": measure_harness,
        "framework": compare_frameworks,
        "input": compare_input,
        "memory": measure_memory,
    },
    "generate": {
        "sampling": compare_sampling,
        "decoding": compare_decoding,
        "generation": compare_generation,
        "memory": measure_memory,
    },
}
"""What can be measured of every benchmark of a kind."""

DRAWING: Mapping[str, Measure] = {"drawing": compare_drawing}
"""What can be measured of benchmarks that train on simulated galaxies."""
