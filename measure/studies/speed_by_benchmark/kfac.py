"""The measurements that `cepheid measure speed kfac` adds: an update against SGD and a peer."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from cepheid.benchmarks.kfac.peer import PeerTask
from cepheid.measure.engine.memory import measure_peak_bytes
from cepheid.measure.engine.subject import MIB, Measure, Measurement, Row, Subject, make_task
from cepheid.measure.engine.turns import Timing, divide, take_steps, time_steps
from cepheid.measure.studies.speed_by_benchmark.kfac_formats import compare_formats
from cepheid.measure.studies.speed_by_benchmark.kfac_information import compare_information
from cepheid.reference.run.config import RunConfig

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
    measures = {name: partial(time_steps, task, updates) for name, task in tasks.items()}
    timings = subject.time(f"{updates} updates", measures)
    rows: list[Row] = []
    facts: dict[str, Any] = {}
    for timing in timings:
        row, facts[timing.label] = _compare(timing, timings[0])
        rows.append(row)
    return rows, facts


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
    tasks = [make_task(_configure(subject, name, seed), subject.ranks) for name in (SGD, STALE)]
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
    create = PeerTask if name == PEER else None
    config = _configure(subject, name, seed=1)
    task = make_task(config, subject.ranks, create, is_warm=False)
    take_steps(task, SETTLE_UPDATES if name == STALE else 1)
    return task


MEASUREMENTS: Mapping[str, Mapping[str, Measure]] = {
    "kfac": {
        "updates": compare_updates,
        "whole_run": compare_whole_runs,
        "fisher": compare_fishers,
        "information": compare_information,
        "formats": compare_formats,
    }
}
ON_REQUEST = tuple(MEASUREMENTS["kfac"])
