"""What `cepheid measure speed kfac` adds: updates, Fisher matrices, formats of factors.

``formats`` shows what the formats in which factors travel do to the update. Ueno et al. 2020
(doi:10.1145/3394486.3403265), section 3.3.3, attribute the failure of half precision to the small
eigenvalues of factors, which rounding breaks. Damping is added to these, so each format is measured
with several dampings.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, get_args

import torch
from torch import Tensor

from cepheid.benchmarks.kfac.comparison import PEER as PEER_WORKLOAD
from cepheid.measure.engine.byte_counts import measure_peak_bytes
from cepheid.measure.engine.turns import (
    MIB,
    Measure,
    Measurement,
    Row,
    Subject,
    Timing,
    divide,
    fit_steps,
    take_steps,
    time_steps,
)
from cepheid.reference.run.config import RunConfig
from cepheid.rules.errors import UserError
from cepheid.second_order.layers import KroneckerLayer
from cepheid.second_order.number_formats import Format
from cepheid.second_order.simulated import round_to
from cepheid.second_order.statistic import split_damping

FORMAT_SETTLE_UPDATES = 60
PUBLISHED_DAMPING = 2.5e-4
FORMAT_SETTINGS = ("precision=fp32", "compile=off", "kfac_stale=false")
DAMPINGS = (1e-2, PUBLISHED_DAMPING, 1e-6)


@dataclass(frozen=True)
class Rounding:
    """What a format does: how far the update moves, and which damped factors lose positivity.

    ``change`` is the norm of the change over that of the update; ``indefinite`` of ``factors`` are
    not positive definite after they were rounded and damped.
    """

    form: Format
    damping: float
    change: float
    indefinite: int
    factors: int


def compare_formats(subject: Subject) -> Measurement:
    """Round the factors of a network in training to each format; compare the updates.

    Raises UserError without K-FAC, or where there are several ranks.
    """
    if subject.ranks.world_size > 1:
        raise UserError(
            f"formats: this is measured on one rank, and there are {subject.ranks.world_size}; "
            "fix: start one process"
        )
    config = subject.configure(*FORMAT_SETTINGS)
    if (chosen := config.hyperparameters["opt_preconditioner"]) != "kfac":
        raise UserError(
            f"--set opt_preconditioner={chosen}: formats are measured on the factors of K-FAC; "
            "fix: leave it out"
        )
    task = subject.make_task(config, is_warm=False)
    take_steps(task, FORMAT_SETTLE_UPDATES)
    task.loss_and_gradients()
    seen = task.preconditioner.kfac.layers
    layers = [layer for layer in seen if isinstance(layer, KroneckerLayer)]
    forms: list[Format] = [form for form in get_args(Format) if form != "float32"]
    found = [measure_rounding(layers, form, damping) for damping in DAMPINGS for form in forms]
    rows = []
    for each in found:
        text = f"the update changes by {each.change:.2%} of its norm"
        lost = f"{each.indefinite} of {each.factors} factors indefinite"
        rows.append(Row(f"{each.form}, damping {each.damping:g}", text, lost))
    return Measurement(rows, {"roundings": [asdict(each) for each in found]})


def measure_rounding(layers: Sequence[KroneckerLayer], form: Format, damping: float) -> Rounding:
    """Compute the update of all layers, in float64, with their factors exact and rounded."""
    squares, changes, indefinite = 0.0, 0.0, 0
    for layer in layers:
        exact = layer.averages
        rounded = [round_to(matrix, form) for matrix in exact]
        gradient = layer.gradient().double()
        expected, _ = _precondition(gradient, exact, damping)
        found, lost = _precondition(gradient, rounded, damping)
        squares += float(expected.square().sum())
        changes += float((found - expected).square().sum())
        indefinite += lost
    return Rounding(form, damping, (changes / squares) ** 0.5, indefinite, 2 * len(layers))


def _precondition(
    gradient: Tensor, averages: Sequence[Tensor], damping: float
) -> tuple[Tensor, int]:
    """Return B⁻¹ G A⁻¹, (outputs, inputs), and how many of the two are not positive definite."""
    shares = split_damping(averages, damping, True)
    inputs, outputs = (
        matrix.double()
        + share.double() * torch.eye(len(matrix), dtype=torch.float64, device=matrix.device)
        for matrix, share in zip(averages, shares, strict=True)
    )
    lost = sum(int(torch.linalg.cholesky_ex(each).info) > 0 for each in (inputs, outputs))
    half = torch.linalg.solve(outputs, gradient)
    return torch.linalg.solve(inputs, half, left=False), lost


UPDATES = 10  # of each turn
SETTLE_UPDATES = 125  # after which stale factors have found their intervals
RUN_UPDATES = 8  # of each turn of a whole run
SGD, STALE, PEER = "SGD", "K-FAC, stale", "kfac-pytorch, every step"
SETTINGS: Mapping[str, list[str]] = {
    SGD: ["opt_preconditioner=none"],
    "K-FAC, every step": ["kfac_stale=false"],
    STALE: [],
    PEER: ["opt_preconditioner=none"],
}
FISHER_UPDATES = 2  # of each turn
FISHERS: Mapping[str, list[str]] = {
    SGD: SETTINGS[SGD],
    **{
        f"K-FAC, {fisher} Fisher, every step": ["kfac_stale=false", f"kfac_fisher={fisher}"]
        for fisher in ("empirical", "sampled", "sampled_4", "exact", "gauss_newton")
    },
}


def compare_updates(subject: Subject) -> Measurement:
    """Compare an update of K-FAC, with fresh and stale factors, with SGD and kfac-pytorch.

    Also the memory that K-FAC and the peer need beyond that of SGD.
    """
    has_peer = find_spec("kfac") is not None
    names = [name for name in SETTINGS if name != PEER or has_peer]
    rows, facts = _time_updates(subject, names, UPDATES)
    memory_rows, facts["peak_bytes"] = _measure_memory(subject, [n for n in names if n != STALE])
    rows += memory_rows
    if not has_peer:
        rows.append(Row(PEER, "left out: kfac-pytorch is not installed; see the README"))
    return Measurement(rows, facts)


def _measure_memory(subject: Subject, names: Sequence[str]) -> tuple[list[Row], Mapping[str, int]]:
    """Return lines and bytes of what tensors take at most while a task is made and trained.

    The first of ``names`` is SGD. All make the same number of updates.
    """

    def train(name: str) -> float:
        return time_steps(_make_settled_task(subject, name), 1)

    peaks = {name: measure_peak_bytes(partial(train, name)) for name in names}
    of_sgd = peaks[names[0]]
    rows = [
        Row(
            f"{name}: memory beyond that of {SGD}",
            f"{(peaks[name] - of_sgd) / MIB:.1f} MiB",
            f"{peaks[name] / MIB:.1f} MiB",
            f"{SGD}: {of_sgd / MIB:.1f} MiB",
        )
        for name in names[1:]
    ]
    return rows, peaks


def compare_fishers(subject: Subject) -> Measurement:
    """Compare an update with each Fisher matrix, fresh in every step, with SGD."""
    return Measurement(*_time_updates(subject, list(FISHERS), FISHER_UPDATES))


def _time_updates(
    subject: Subject, names: Sequence[str], updates: int
) -> tuple[list[Row], dict[str, Any]]:
    """Return lines and facts of updates in turns; the first of ``names`` is SGD."""
    tasks = {name: _make_settled_task(subject, name) for name in names}
    updates = min(fit_steps(task, updates) for task in tasks.values())
    timings = subject.time_tasks(f"{updates} updates", tasks, updates)
    compared = {timing.label: _compare(timing, timings[0]) for timing in timings}
    rows = [row for row, _ in compared.values()]
    return rows, {name: facts for name, (_, facts) in compared.items()}


def _compare(timing: Timing, of_sgd: Timing) -> tuple[Row, dict[str, Any]]:
    """Return a line and its facts: the ratio of medians, and the quartiles of the turns' ratios."""
    ratio, low, high = divide(timing, of_sgd)
    row = Row(
        timing.label,
        f"{ratio:.2f} times an update of SGD ({low:.2f} to {high:.2f})",
        f"{1000 * timing.median_seconds:.1f} ms",
    )
    return row, {"seconds": timing.seconds, "ratio_to_sgd": ratio, "quartiles": (low, high)}


def compare_whole_runs(subject: Subject) -> Measurement:
    """Compare all updates of a run of K-FAC with as many of SGD; the rounds are the seeds."""
    pairs = [_time_whole_run(subject, seed) for seed in range(1, subject.rounds + 1)]
    rows = [
        Row(
            f"{STALE}, seed {seed}",
            f"{seconds / of_sgd:.2f} times an update of SGD",
            f"{1000 * seconds:.1f} ms",
            f"{SGD}: {1000 * of_sgd:.1f} ms",
        )
        for seed, (of_sgd, seconds) in enumerate(pairs, 1)
    ]
    seconds_of_sgd, seconds_of_kfac = zip(*pairs, strict=True)
    all_seeds = Timing(f"{STALE}, all seeds", seconds_of_kfac)
    row, facts = _compare(all_seeds, Timing(SGD, seconds_of_sgd))
    return Measurement([*rows, row], {**facts, "seconds_of_sgd": seconds_of_sgd})


def _time_whole_run(subject: Subject, seed: int) -> tuple[float, float]:
    """Return the mean seconds of an update of SGD and of K-FAC, from the first update on.

    As many updates are made as the learning rate of K-FAC takes to fall to 0.
    """
    tasks = [subject.make_task(_configure(subject, name, seed)) for name in (SGD, STALE)]
    config = tasks[1].config
    decay_epochs = float(config.hyperparameters["opt_learning_rate_decay_epochs"])
    last_sample = decay_epochs * config.definition.train_samples
    turns = math.ceil(last_sample / config.global_batch_size / RUN_UPDATES)
    seconds = [0.0, 0.0]
    with subject.count(f"seed {seed}, {RUN_UPDATES} updates of each", "turns") as on_turn:
        for turn in range(turns):
            for side, task in enumerate(tasks):
                seconds[side] += time_steps(task, RUN_UPDATES) / turns
            on_turn(turn + 1, turns)
    return seconds[0], seconds[1]


def _configure(subject: Subject, name: str, seed: int) -> RunConfig:
    """Return the configuration of one side, in the precision of the reference's task."""
    precision: str = subject.task.execution.precision
    settings, known = {**SETTINGS, **FISHERS}[name], subject.config.definition.execution
    if settings == SETTINGS[SGD]:  # which refuses what has an effect with K-FAC only
        settings = settings + [f"{key}={known[key][0]}" for key in known if key.startswith("kfac_")]
    return subject.configure(f"precision={precision}", *settings, seed=seed)


def _make_settled_task(subject: Subject, name: str) -> Any:
    """Return a task that has made some updates."""
    workload = PEER_WORKLOAD if name == PEER else None
    config = _configure(subject, name, seed=1)
    task = subject.make_task(config, workload, is_warm=False)
    take_steps(task, SETTLE_UPDATES if name == STALE else 1)
    return task


MEASUREMENTS: Mapping[str, Measure] = {
    "updates": compare_updates,
    "whole_run": compare_whole_runs,
    "fisher": compare_fishers,
    "formats": compare_formats,
}
