"""Measure how ranks share updates, sums of gradients, models and images, on several ranks.

These are measurements of `cepheid measure speed`, for benchmarks with the settings of
``cepheid.reference.torch.parallel``.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from cepheid.measure.engine.byte_counts import (
    SavedBytes,
    count_bytes,
    count_state_bytes,
    predict_bytes,
)
from cepheid.measure.engine.noise import NO_DATA
from cepheid.measure.engine.phases import profile_steps
from cepheid.measure.engine.turns import (
    MIB,
    STEPS,
    Measure,
    Measurement,
    Row,
    Subject,
    Timing,
    fit_steps,
    format_timing,
    make_task,
    take_steps,
    time_steps,
)
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Schedule
from cepheid.reference.torch.parallel.pipeline import Pipeline
from cepheid.reference.torch.parallel.plan import STAGES, TENSOR_RANKS
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.reference.torch.ranks.distributed import TorchRanks

WEIGHT_UPDATES = ("replicated", "sharded", "overlapped")
FLAT = "flat"


def compare_updates(subject: Subject) -> Measurement:
    """Compare steps with the update on every rank, sharded, and overlapped, in turns."""
    require_ranks(subject, "ranks that exchange something are measured on several ranks")
    tasks = {way: subject.make_variant(weight_update=way) for way in WEIGHT_UPDATES}
    rows, facts = [], {}
    steps = fit_steps(subject.task, STEPS)
    for timing in subject.time_tasks("steps", tasks, steps):
        task = tasks[timing.label]
        sent = sum(_count_bytes_of_step(subject, task, steps)[subject.ranks.rank])
        shares = profile_steps(task, steps).shares
        state = count_state_bytes(task.optimizer)
        text = (
            f"update {shares['update']:.1%} and gathering {shares.get('gather', 0.0):.1%} of a "
            f"profiled step; {sent / MIB:.2f} MiB sent per rank; {state / MIB:.2f} MiB of state "
            "per rank"
        )
        what = f"update {timing.label}, step of {task.config.global_batch_size} samples"
        rows.append(Row(what, text, format_timing(timing)))
        facts[timing.label] = {
            "seconds": timing.seconds,
            "shares": dict(shares),
            "sent_bytes": sent,
            "state_bytes": state,
        }
    return Measurement(rows, facts)


def compare_sums(subject: Subject) -> Measurement:
    """Compare steps with a flat sum of gradients and sums over each possible mesh."""
    require_ranks(subject, "ranks that exchange something are measured on several ranks")
    count = subject.ranks.world_size
    tasks = {FLAT: subject.make_variant(all_reduce=FLAT)}
    for number in range(2, count + 1):
        if count % number == 0:
            task = subject.make_variant(all_reduce=f"mesh:{number}")
            tasks[f"{number} x {count // number}"] = task
    rows, facts = [], {}
    steps = fit_steps(subject.task, STEPS)
    for timing in subject.time_tasks("steps", tasks, steps):
        task = tasks[timing.label]
        table = _count_bytes_of_step(subject, task, steps)
        _, columns = shape = task.sharing.mesh_shape
        pairs = [(a, b) for a in range(count) for b in range(count)]
        within = sum(table[a][b] for a, b in pairs if a // columns == b // columns) / count
        between = sum(map(sum, table)) / count - within
        formula = predict_bytes(sum(each.nbytes for each in task.model.parameters()), shape)
        text = (
            f"{within / MIB:.2f} MiB sent within the row (formula {formula[0] / MIB:.2f}), "
            f"{between / MIB:.2f} MiB to other rows (formula {formula[1] / MIB:.2f}) per rank"
        )
        if within + between < 0.01 * sum(formula):
            text = f"added in shared memory; messages would be {sum(formula) / MIB:.2f} MiB a rank"
        what = f"sum {timing.label}, step of {task.config.global_batch_size} samples"
        rows.append(Row(what, text, format_timing(timing)))
        facts[timing.label] = {"seconds": timing.seconds, "sent_bytes": table, "formula": formula}
    return Measurement(rows, facts)


def require_ranks(subject: Subject, why: str) -> None:
    """Raise UserError with the reason ``why`` where there is one rank alone."""
    if subject.ranks.world_size == 1:
        raise UserError(
            f"{why}; fix: start "
            "torchrun --standalone --nproc-per-node 2 -m cepheid.tools.measure speed …"
        )


def _count_bytes_of_step(subject: Subject, task: Any, steps: int) -> list[list[int]]:
    """Return the bytes that each rank sends each other one in a step, a mean of ``steps``."""
    table = count_bytes(subject.ranks, partial(take_steps, task, steps))
    return [[count // steps for count in sent] for sent in table]


EXCHANGE: Mapping[str, Measure] = {"update": compare_updates, "sums": compare_sums}


SHARED_STEPS = 3  # of each turn
MICRO_BATCHES = (2, 4, 8, 16, 32)
DATA_PARALLEL = "data parallel"


def compare_shared_models(subject: Subject) -> Measurement:
    """Compare data parallelism with pipelines and shared matrices: time, bubble, bytes, memory."""
    require_ranks(subject, "a model is shared by several ranks")
    tasks, impossible = {}, []
    for label, settings in _list_arms(subject).items():
        try:
            tasks[label] = subject.make_variant(compile="off", **settings)  # as stages run
        except UserError as error:
            impossible.append(Row(label, f"not possible: {error}"))
    busy: dict[str, list[list[float]]] = {label: [] for label in tasks}
    measures = {
        label: partial(_time_turn, subject, task, busy[label]) for label, task in tasks.items()
    }
    rows, facts = [], dict[str, Any]()
    for timing in subject.time("steps", measures):
        task = tasks[timing.label]
        fact = {"seconds": timing.seconds, **_count_memory(subject, task)}
        # Of data parallelism too: its share of the batch is that of a rank.
        fact["sample_bytes"] = fact["activation_bytes"] / task.batch_per_rank
        first = facts.get(DATA_PARALLEL, fact)
        fact["of_one_rank"] = fact["sample_bytes"] / first["sample_bytes"]
        sent = count_bytes(subject.ranks, partial(take_steps, task, 1))
        fact["sent_bytes"] = max(map(sum, sent))  # of the rank that sends most
        if isinstance(task.shared, Pipeline):
            turns = busy[timing.label][1:]  # without the turn before the first one
            stages = [statistics.median(shares) for shares in zip(*turns, strict=True)]
            count = task.sharing.micro_batches
            fact["bubble"] = [1 - statistics.mean(shares) for shares in turns]
            fact["formula"] = predict_bubble([1.0] * len(stages), count)
            fact["formula_of_stages"] = predict_bubble(stages, count)
        rows.append(Row(timing.label, _describe(fact), format_timing(timing)))
        facts[timing.label] = fact
    return Measurement([*rows, *impossible], facts)


def predict_bubble(stages: Sequence[float], micro_batches: int) -> float:
    """Return the share of a pipeline's time in which a stage waits, in the mean over ``stages``.

    These are the times that they compute, in any unit. The first micro-batch takes the time of all
    stages, and each other one that of the slowest. p equal stages wait (p - 1) / (m + p - 1).
    """
    total = sum(stages) + (micro_batches - 1) * max(stages)
    return 1 - micro_batches * statistics.mean(stages) / total


def _list_arms(subject: Subject) -> dict[str, dict[str, str]]:
    """Return the settings of each arm: all that the definition has for so many ranks."""
    choices = subject.config.definition.execution
    count = str(subject.ranks.world_size)
    arms: dict[str, dict[str, str]] = {DATA_PARALLEL: {}}
    if count in choices.get(STAGES, ()):
        for number in [number for number in MICRO_BATCHES if number >= int(count)][:3]:
            for schedule in get_args(Schedule):
                settings = {STAGES: f"{count}:{schedule}:{number}"}
                arms[f"{count} stages, {schedule}, {number} micro-batches"] = settings
    if count in choices.get(TENSOR_RANKS, ()):
        arms[f"matrices on {count} ranks"] = {TENSOR_RANKS: count}
    return arms


def _time_turn(subject: Subject, task: Any, busy: list[list[float]]) -> float:
    """Return the mean seconds of a step; append the share in which each stage computes to ``busy``.

    The time of a pipeline excludes the data, the sum of the gradients and the update.
    """
    if not isinstance(task.shared, Pipeline):
        return time_steps(task, SHARED_STEPS)
    task.shared.seconds = in_pipeline = 0.0

    @contextmanager
    def time_phase(phase: str) -> Iterator[None]:
        nonlocal in_pipeline
        start = time.perf_counter()
        yield
        in_pipeline += time.perf_counter() - start if phase == "pipeline" else 0.0

    task.phase = time_phase
    seconds = time_steps(task, SHARED_STEPS)
    busy.append(subject.ranks.all_gather_object(task.shared.seconds / in_pipeline))
    return seconds


def _count_memory(subject: Subject, task: Any) -> dict[str, int]:
    """Return bytes of the rank with most: gradients, optimizer, what the backward pass keeps.

    Weights are not counted: every rank has the whole model, to evaluate it.
    """
    task.model.train()
    trained = task.shared.list_trained() if task.shared else list(task.model.parameters())
    saved = SavedBytes.beside(trained)
    with saved.count():
        task.step()
    own = {
        "gradient_bytes": sum(parameter.nbytes for parameter in trained),
        "state_bytes": count_state_bytes(task.optimizer),
        "activation_bytes": saved.most,
    }
    of_ranks = subject.ranks.all_gather_object(own)
    return {key: max(each[key] for each in of_ranks) for key in own}


def _describe(fact: Mapping[str, Any]) -> str:
    """Return the numbers of an arm as text."""
    held = [fact[f"{what}_bytes"] / MIB for what in ("gradient", "state", "activation")]
    text = (
        f"{fact['sent_bytes'] / MIB:.2f} MiB sent; MiB of gradients, optimizer, activations: "
        f"{held[0]:.2f}, {held[1]:.2f}, {held[2]:.2f}"
    )
    if fact["of_one_rank"] != 1:
        text = f"a sample keeps {fact['of_one_rank']:.2f} of its activations on one rank; {text}"
    if "bubble" not in fact:
        return text
    bubble = statistics.median(fact["bubble"])
    formulas = f"{fact['formula']:.0%}, with these stages {fact['formula_of_stages']:.0%}"
    return f"bubble {bubble:.0%} (formula {formulas}); {text}"


MODELS: Mapping[str, Measure] = {"shared": compare_shared_models}


PARTITIONS = "spatial_partitions"
ALONE, BATCH = "one rank", "shared batch"
LEAST_PIXELS, MOST_PIXELS = 64, 512


def compare_partitions(subject: Subject) -> Measurement:
    """Compare ranks that share each image with one rank, and with shared batches, by image size."""
    require_ranks(subject, "an image is shared by several ranks")
    definition, count = subject.config.definition, subject.ranks.world_size
    grids = [grid for grid in definition.execution[PARTITIONS] if _count_parts(grid) == count]
    if not grids:
        raise UserError(f"no image can be shared by {count} ranks; fix: start 2 or 4 with torchrun")
    bn_span = ["model_bn_span=0"] if "model_bn_span" in definition.hyperparameters else []
    config = subject.configure("compile=off", "precision=fp32", *bn_span)
    pixels = max(LEAST_PIXELS, int(definition.model["pixels"]))
    rows, facts = list[Row](), dict[str, Any]()
    while not facts or pixels <= MOST_PIXELS:
        model = MappingProxyType({**definition.model, "pixels": pixels})
        sized = replace(config, definition=replace(definition, model=model))
        for way, (timing, fact) in _compare_ways(subject, sized, grids).items():
            text = (
                f"{fact['times_as_fast']:.2f} times as fast as one rank, by processor time "
                f"{fact['times_by_processor']:.2f}; keeps {fact['kept_bytes'] / MIB:.2f} MiB"
            )
            what = f"{pixels} pixels, {config.global_batch_size} images, {way}"
            rows.append(Row(what, text, format_timing(timing)))
            facts[f"{pixels} pixels, {way}"] = {"pixels": pixels, "way": way, **fact}
        pixels *= 2
    return Measurement(rows, facts)


def _count_parts(grid: str) -> int:
    rows, _, columns = grid.partition("x")
    return int(rows) * int(columns or 1)


def _compare_ways(
    subject: Subject, config: RunConfig, grids: Sequence[str]
) -> Mapping[str, tuple[Timing, Mapping[str, Any]]]:
    """Time forward and backward passes and sums of gradients on noise, on one rank and shared.

    The processor time, of the rank that takes most, leaves out waiting, so it bounds what there is
    to gain. Bytes are those that the forward pass keeps for the backward pass.
    """
    ranks, passes = subject.ranks, {}
    one = type(ranks)(0, 1, ranks.device)
    passes[ALONE] = _Passes(config, one, is_idle=not ranks.is_first)
    if config.global_batch_size % ranks.world_size == 0:
        passes[BATCH] = _Passes(config, ranks)
    for grid in grids:
        execution = config.execution.with_setting(PARTITIONS, grid)
        passes[f"images in {grid}"] = _Passes(replace(config, execution=execution), ranks)
    busy: dict[str, list[float]] = {way: [] for way in passes}

    def time_way(way: str) -> float:
        ranks.barrier()
        start, begun = time.perf_counter(), time.process_time()
        passes[way]()
        own = time.process_time() - begun
        ranks.barrier()
        elapsed = time.perf_counter() - start
        busy[way].append(max(ranks.all_gather_object(own)))
        return elapsed

    timings = subject.time("passes", {way: partial(time_way, way) for way in passes})
    processor = {way: statistics.median(seconds[1:]) for way, seconds in busy.items()}
    return {
        timing.label: (
            timing,
            {
                "seconds": timing.seconds,
                "times_as_fast": timings[0].median_seconds / timing.median_seconds,
                "processor_seconds": tuple(busy[timing.label][1:]),
                "times_by_processor": processor[ALONE] / processor[timing.label],
                "kept_bytes": max(ranks.all_gather_object(passes[timing.label].count_bytes())),
            },
        )
        for timing in timings
    }


class _Passes:
    """Forward and backward passes over a rank's share of noise; on idle ranks it does nothing."""

    def __init__(self, config: RunConfig, ranks: "TorchRanks", is_idle: bool = False) -> None:
        self.task = make_task(config, ranks, is_warm=False, inputs=NO_DATA)
        self.task.model.train()
        self.batch, self.is_idle = self.task.draw_noise(self.task.batch_per_rank), is_idle

    def __call__(self) -> None:
        """Compute the gradients, average them and forget them."""
        if not self.is_idle:
            self.task.compute_loss(*self.batch).backward()
            self.task.optimizer.zero_grad()

    def count_bytes(self) -> int:
        """Return what one more pass keeps, besides the weights."""
        saved = SavedBytes.beside(self.task.model.parameters())
        with saved.count():
            self()
        return saved.most


IMAGES: Mapping[str, Measure] = {"partitions": compare_partitions}
BY_BENCHMARK: Mapping[str, Mapping[str, Measure]] = {
    # With LARS, ranks share the update of resnet50 with --set opt_name=lars.
    "resnet50": {**EXCHANGE, **MODELS, **IMAGES},
    "ssd": {**EXCHANGE, **IMAGES},
    "mask_rcnn": {**MODELS, **EXCHANGE, **IMAGES},
    "transformer": {**EXCHANGE, **MODELS},
    "gnmt": EXCHANGE,
    "chest_xray": EXCHANGE,
    "galaxy_shape": MODELS,
    "galaxy_bnn": MODELS,
}
