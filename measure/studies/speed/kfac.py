"""What `cepheid measure speed kfac` adds: updates, Fisher matrices, formats of factors.

``information`` compares Fisher matrices of a small network with those of other libraries.
``formats`` shows what the formats in which factors travel do to the update. Ueno et al. 2020
(doi:10.1145/3394486.3403265), section 3.3.3, attribute the failure of half precision to the small
eigenvalues of factors, which rounding breaks. Damping is added to these, so each format is measured
with several dampings.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, get_args

import torch
from torch import Tensor, nn

from cepheid.benchmarks.kfac.comparison import PEER as PEER_WORKLOAD
from cepheid.benchmarks.kfac.comparison import compare_directions
from cepheid.measure.engine.byte_counts import measure_peak_bytes
from cepheid.measure.engine.turns import (
    MIB,
    Measure,
    Measurement,
    Row,
    Subject,
    Timing,
    divide,
    find_middle_half,
    fit_steps,
    take_steps,
    time_once,
    time_steps,
)
from cepheid.reference.run.config import RunConfig
from cepheid.rules.errors import UserError
from cepheid.second_order import information
from cepheid.second_order.layers import KroneckerLayer
from cepheid.second_order.number_formats import Format
from cepheid.second_order.simulated import round_to
from cepheid.second_order.statistic import split_damping

SAMPLES, PIXELS, CLASSES = 64, 16, 10
CHANNELS = (3, 16, 32, 64)
OURS_BLOCKS, OURS_PRODUCT = "blocks, cepheid", "product with the whole matrix, cepheid"
PEER_BLOCKS, PEER_PRODUCT = "blocks, curvlinops", "product with the whole matrix, curvlinops"
BACKPACK = "blocks, BackPACK (KFLR)"
PEER_DIRECTION = "direction of two linear layers, kfac-pytorch (eigen-decompositions)"

Batch = tuple[Tensor, Tensor]
Job = Callable[[], Tensor]


def make_network() -> nn.Sequential:
    """Return convolutions and a linear layer without biases, which all libraries know."""
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(CHANNELS):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.ReLU()]
    features = CHANNELS[-1] * (PIXELS // 2 ** (len(CHANNELS) - 1)) ** 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, CLASSES, bias=False))


def _multiply(
    make_matrix: Callable[..., Any], model: nn.Module, batch: Batch, vectors: dict[str, Tensor]
) -> Tensor:
    """Return the product with blocks, or the whole matrix, that are made anew, flat."""
    products = make_matrix(model, [batch]).multiply(vectors)
    return torch.cat([products[name].flatten() for name in vectors])


def _multiply_peer(kind: str, model: nn.Module, batch: Batch, vectors: dict[str, Tensor]) -> Tensor:
    """Return the product that curvlinops computes, flat; its loss is the mean, as ours is."""
    import curvlinops

    facts = model, nn.CrossEntropyLoss(), list(model.parameters()), [batch]
    operator = (
        curvlinops.KFACLinearOperator(*facts, fisher_type="type-2", check_deterministic=False)
        if kind == "blocks"
        else curvlinops.GGNLinearOperator(*facts, check_deterministic=False)
    )
    products = operator @ list(vectors.values())
    return torch.cat([product.flatten() for product in products])


def _multiply_backpack(
    model: nn.Module, loss: nn.Module, batch: Batch, vectors: dict[str, Tensor]
) -> Tensor:
    """Return the product with the factors of BackPACK, flat, for an extended model and loss."""
    from backpack import backpack
    from backpack.extensions import KFLR

    inputs, targets = batch
    model.zero_grad()
    with backpack(KFLR()):
        loss(model(inputs), targets).backward()
    products = []
    for name, parameter in model.named_parameters():
        outputs, others = parameter.kflr  # type: ignore[attr-defined]
        products.append((outputs @ vectors[name].flatten(1) @ others).flatten())
    return torch.cat(products).detach()


def list_jobs(vectors: dict[str, Tensor], model: nn.Module, batch: Batch) -> Mapping[str, Job]:
    """Return what is timed, ours first, with the libraries that are installed.

    ``vectors`` have the same shapes as the parameters, ``batch`` has images (n, 3, y, x).
    """
    jobs: dict[str, Job] = {
        OURS_BLOCKS: partial(_multiply, information.fisher_blocks, model, batch, vectors),
        OURS_PRODUCT: partial(_multiply, information.FisherProducts, model, batch, vectors),
    }
    if find_spec("curvlinops"):
        jobs[PEER_BLOCKS] = partial(_multiply_peer, "blocks", model, batch, vectors)
        jobs[PEER_PRODUCT] = partial(_multiply_peer, "whole", model, batch, vectors)
    if find_spec("backpack"):
        from backpack import extend

        own, loss = extend(make_network()), extend(nn.CrossEntropyLoss())
        jobs[BACKPACK] = partial(_multiply_backpack, own, loss, batch, vectors)
    return jobs


def compare_information(subject: Subject) -> Measurement:
    """Compare blocks, products and directions with those of other libraries, if installed."""
    generator = torch.Generator().manual_seed(2)
    model = make_network()
    images = torch.randn(SAMPLES, 3, PIXELS, PIXELS, generator=generator)
    batch = images, torch.randint(CLASSES, (SAMPLES,), generator=generator)
    vectors = {
        name: torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()
    }
    jobs = list_jobs(vectors, model, batch)
    results = {name: job().detach() for name, job in jobs.items()}
    measures = {name: partial(time_once, job) for name, job in jobs.items()}
    timings = subject.time("blocks and products", measures)
    rows: list[Row] = []
    facts: dict[str, dict[str, Any]] = {}
    last = list(vectors.values())[-1].numel()
    for timing in timings:
        ours = OURS_PRODUCT if "whole" in timing.label else OURS_BLOCKS
        # BackPACK approximates convolutions in another way; the linear layer comes last.
        compared = slice(-last if timing.label == BACKPACK else None, None)
        found, expected = results[timing.label][compared], results[ours][compared]
        difference = float((found - expected).norm() / expected.norm())
        what = "the linear layer differs" if timing.label == BACKPACK else "differs"
        low, high = (1000 * seconds for seconds in find_middle_half(timing.seconds))
        memory = measure_peak_bytes(jobs[timing.label])
        middle = f"{1000 * timing.median_seconds:.1f} ms ({low:.1f} to {high:.1f})"
        beside = f"{what} from ours by {difference:.1e}" if timing.label != ours else ""
        rows.append(Row(timing.label, f"{middle}, {memory / MIB:.1f} MiB", beside))
        of_timing = {"seconds": timing.seconds, "difference": difference, "peak_bytes": memory}
        facts[timing.label] = of_timing
    if find_spec("kfac"):
        difference = compare_directions()
        facts[PEER_DIRECTION] = {"difference": difference}
        rows.append(Row(PEER_DIRECTION, f"differs from ours by {difference:.1e}"))
    peers = {PEER_PRODUCT: "curvlinops", BACKPACK: "backpack", PEER_DIRECTION: "kfac"}
    for name, package in peers.items():
        if name not in facts:
            rows.append(Row(name, f"left out: {package} is not installed; see the README"))
    return Measurement(rows, facts)


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
