"""Epochs to the target: the settings that are compared, the runs made for it, published results.

``benchmarks/<name>/epochs.yaml`` names the settings, ``epochs.json`` beside it holds the runs,
``published_epochs.csv`` the results of MLPerf rounds. Epochs by batch size come from the reference
convergence points (``cepheid.rules.rcp``).
"""

import csv
import hashlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine import trainings
from cepheid.measure.engine.provenance import lock_record
from cepheid.measure.engine.trainings import Training
from cepheid.measure.engine.turns import configure_open
from cepheid.reference.machine.placement import find_placement
from cepheid.reference.optim.cycles import follow_cycles
from cepheid.reference.run.execution import add_switches
from cepheid.reference.session.frameworks import find_create
from cepheid.reference.session.observer import Observer
from cepheid.rules import evidence, rcp
from cepheid.rules.definition import Definition, locate_benchmarks
from cepheid.rules.errors import UserError, did_you_mean
from cepheid.rules.evidence import Curve

COMPARISONS, MEASURED, PUBLISHED = "epochs.yaml", "epochs.json", "published_epochs.csv"


Changes = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Arm:
    """One of the settings compared; ``published_epochs`` is what the source reports for it.

    ``cycles`` replace the schedule of the learning rate (``cepheid.reference.optim.cycles``). Arms
    of the same ``group`` are compared with its first one; its name is the beginning of theirs.
    ``budget_epochs`` replace the definition's budget, where the rate falls to 0 long before or
    after it; ``changes`` what no setting reaches (``Comparison``).
    """

    name: str
    overrides: tuple[str, ...]
    published_epochs: float | None = None
    cycles: tuple[Mapping[str, Any], ...] = ()
    group: str = ""
    budget_epochs: int | None = None
    changes: Changes = field(default_factory=dict)

    @property
    def own_name(self) -> str:
        """The name without that of the group."""
        return self.name.removeprefix(f"{self.group}, ")


@dataclass(frozen=True)
class Comparison:
    """Settings whose epochs to the target are compared, and the source that compared them.

    On fewer ranks than ``needs_ranks`` they would not differ. ``switches`` are settings that only
    this study has, with their choices. ``changes`` of ``model``, ``data``, ``targets``, ``timing``
    and ``hyperparameters``, their defaults, make the problem another one.
    """

    name: str
    title: str
    source: str = ""
    published_at: str = ""
    arms: tuple[Arm, ...] = ()
    needs_ranks: int = 1
    switches: Mapping[str, Sequence[str]] = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)

    def pick(self, names: Sequence[str]) -> Sequence[Arm]:
        """Return the settings with these names, all without names. Raises UserError for others."""
        known = {arm.name: arm for arm in self.arms}
        for name in names:
            if name not in known:
                like, choices = did_you_mean(name, known), "; ".join(known)
                raise UserError(
                    f"--only {name}: {self.name} has no such setting{like} (all: {choices})"
                )
        return [known[name] for name in names] or self.arms

    def vary(self, definition: Definition) -> Definition:
        """Return the definition of the problem that is trained, with a digest of its own."""
        return _change(definition, self.changes)


def _change(definition: Definition, changes: Changes) -> Definition:
    if not changes:
        return definition
    targets, defaults = changes.get("targets", {}), changes.get("hyperparameters", {})
    return replace(
        definition,
        model={**definition.model, **changes.get("model", {})},
        data={**definition.data, **changes.get("data", {})},
        quality=tuple(
            replace(each, target=targets.get(each.metric, each.target))
            for each in definition.quality
        ),
        timing=replace(definition.timing, **changes.get("timing", {})),
        hyperparameters={
            name: replace(each, default=defaults.get(name, each.default))
            for name, each in definition.hyperparameters.items()
        },
        data_digest=None,
        flops_per_sample=None,
        digest=hashlib.sha256(f"{definition.digest}{changes}".encode()).hexdigest(),
    )


@dataclass(frozen=True)
class Run:
    """One training.

    ``epochs`` is None where it missed the targets within the budget; ``best`` is the best value of
    each metric with a target, and ``evaluations`` has all values of these, each with the epochs
    before it (older records have none).
    """

    arm: str
    seed: int
    epochs: float | None
    best: Mapping[str, float]
    evaluations: Sequence[tuple[float, Mapping[str, float]]] = ()


@dataclass(frozen=True)
class PublishedResult:
    """One result of an MLPerf round: tuned, and at full scale."""

    round: str
    submitter: str
    system: str
    batch_size: int
    epochs: tuple[float, ...]

    @property
    def mean_epochs(self) -> float:
        """The mean over the runs that converged."""
        return statistics.mean(self.epochs)


def load_comparison(benchmark: str, scale: str, name: str) -> Comparison:
    """Return the comparison of a benchmark with this name, with the settings of ``scale``.

    Raises UserError if there is none, or none at this scale.
    """
    path = locate_benchmarks() / benchmark / COMPARISONS
    known = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if name not in known:
        choices = f"all: {', '.join(known)}" if known else "it has none"
        raise UserError(
            f"--compare {name}: {benchmark} has no such comparison{did_you_mean(name, known)} "
            f"({choices}; {path} defines them)"
        )
    facts = known[name]
    if scale not in facts["scales"]:
        raise UserError(
            f"--compare {name}: it has no settings for scale {scale} ({path} has those for: "
            f"{', '.join(facts['scales'])}); settings tuned for one scale are not tried at another"
        )
    settings = facts["scales"][scale]
    arms = tuple(
        Arm(
            f"{group['name']}, {arm['name']}" if group else arm["name"],
            (*settings["set"], *group.get("set", ()), *arm["set"]),
            arm.get("published_epochs"),
            tuple(arm.get("cycles", ())),
            group.get("name", ""),
            arm.get("budget_epochs", settings.get("budget_epochs")),
            arm.get("changes", {}),
        )
        for group in facts.get("each", [{}])
        for arm in settings["arms"]
    )
    source = facts["title"], facts["source"], facts["published_at"]
    needs_ranks, switches = settings.get("needs_ranks", 1), facts.get("switches", {})
    return Comparison(name, *source, arms, needs_ranks, switches, settings.get("changes", {}))


def load_runs(definition: Definition, comparison: Comparison) -> list[Run]:
    """Return the runs recorded for this very definition and these settings, by seed."""
    entry = evidence.read_file(definition.name, MEASURED).get(definition.scale, {})
    entry = entry.get(comparison.name, {})
    if entry.get("what") != _identify(definition, comparison):
        return []
    return sorted((Run(**run) for run in entry["runs"]), key=lambda run: run.seed)


def measure_missing(
    definition: Definition,
    comparison: Comparison,
    seeds: Sequence[int],
    arms: Sequence[Arm],
    data_root: Path,
    observer: Observer,
) -> list[Run]:
    """Make the runs that are not recorded, evaluated at least each epoch; return all runs.

    Each run is recorded as soon as it ends. What another comparison, or an earlier state of this
    one, recorded with the same settings is not made again. Without ``seeds`` the recorded ones are
    completed, or seeds 1 to 5 are made. Raises UserError where the settings need more ranks.
    """
    ranks = find_placement().world_size
    if ranks < comparison.needs_ranks:
        raise UserError(
            f"--compare {comparison.name}: at {definition.scale} scale its settings differ only on "
            f"{comparison.needs_ranks} or more ranks, and there is {ranks}; fix: start the command "
            "with torchrun"
        )
    definition = add_switches(definition, comparison.switches)
    have = {(run.arm, run.seed) for run in load_runs(definition, comparison)}
    seeds = seeds or sorted({seed for _, seed in have}) or range(1, 6)
    missing: list[Training] = []
    before = evidence.read_file(definition.name, MEASURED).get(definition.scale, {})
    for seed in seeds:
        for arm in arms:
            if (arm.name, seed) in have:
                continue
            if known := _find_same(before, definition, arm, seed):
                _keep_run(definition, comparison, known)
            else:
                missing.append(_prepare_training(definition, arm, seed, data_root))
    for _, curve in trainings.train_all(definition, missing, data_root, observer):
        _keep_run(definition, comparison, summarise(curve, definition))
    return load_runs(definition, comparison)


def _find_same(
    measured: Mapping[str, Any], definition: Definition, arm: Arm, seed: int
) -> Run | None:
    """Return the run of this seed that any comparison has with the settings of ``arm``.

    Of several it is one whose evaluations are recorded.
    """
    found: list[Run] = []
    for entry in measured.values():
        what = entry["what"]
        if what["definition_digest"] != definition.digest:
            continue
        names = [name for name, settings in what["settings"].items() if settings == _describe(arm)]
        found += [
            Run(**{**run, "arm": arm.name})
            for run in entry["runs"]
            if run["arm"] in names and run["seed"] == seed
        ]
    return max(found, key=lambda run: len(run.evaluations), default=None)


def _evaluate_often(definition: Definition, arm: Arm) -> Definition:
    """Return the definition with an evaluation at least each epoch, and the budget of the arm."""
    epoch, timing = definition.train_samples, definition.timing
    timing = replace(timing, eval_every_samples=min(epoch, timing.eval_every_samples))
    if arm.budget_epochs:
        timing = replace(timing, max_samples=arm.budget_epochs * epoch)
    return replace(definition, timing=timing)


def _prepare_training(definition: Definition, arm: Arm, seed: int, data_root: Path) -> Training:
    definition = _change(_evaluate_often(definition, arm), arm.changes)
    config = configure_open(definition, overrides=arm.overrides, data_root=data_root, seed=seed)
    own = find_create(import_task(definition, "torch"))
    source = follow_cycles(own, arm.cycles) if arm.cycles else own
    return Training(arm.name, arm.name, config, source)


def summarise(curve: Curve, definition: Definition) -> Run:
    """Return the run of a curve, whose samples become epochs."""
    reached = curve.count_samples_to_target(definition)
    best = {
        target.metric: (min if target.better == "lower" else max)(
            quality[target.metric] for _, quality in curve.evaluations
        )
        for target in (definition.quality if curve.evaluations else ())
    }
    epoch = definition.train_samples
    evaluations = [
        (samples / epoch, {metric: quality[metric] for metric in best})
        for samples, quality in curve.evaluations
    ]
    epochs = reached / epoch if reached else None
    return Run(curve.variant, curve.seed, epochs, best, evaluations)


def _keep_run(definition: Definition, comparison: Comparison, run: Run) -> None:
    """Record one more run, beside those that another process recorded meanwhile."""
    with lock_record(definition.name, MEASURED):
        known = load_runs(definition, comparison)
        others = [each for each in known if (each.arm, each.seed) != (run.arm, run.seed)]
        document = evidence.read_file(definition.name, MEASURED)
        document.setdefault(definition.scale, {})[comparison.name] = {
            "what": _identify(definition, comparison),
            "runs": [asdict(each) for each in [*others, run]],
        }
        evidence.write_file(definition.name, MEASURED, document)


def _identify(definition: Definition, comparison: Comparison) -> dict[str, Any]:
    """Return the facts that recorded runs must share to be counted."""
    settings = {arm.name: _describe(arm) for arm in comparison.arms}
    return {"definition_digest": definition.digest, "settings": settings}


def _describe(arm: Arm) -> list[str]:
    budget = [f"budget_epochs={arm.budget_epochs}"] if arm.budget_epochs else []
    changes = [str(arm.changes)] if arm.changes else []
    return [*arm.overrides, *map(str, arm.cycles), *budget, *changes]


def list_by_batch_size(definition: Definition) -> Mapping[int, Sequence[float]]:
    """Return the epochs to target of the reference's runs, from its convergence points."""
    points = rcp.load(definition.name, definition.scale)
    if points is None or not points.belongs_to(definition):
        return {}
    return {
        point.batch_size: [samples / definition.train_samples for samples in point.samples]
        for point in points.points
        if point.samples
    }


def load_published(benchmark: str) -> list[PublishedResult]:
    """Return all published results of a benchmark by batch size, or none."""
    path = locate_benchmarks() / benchmark / PUBLISHED
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    results = [
        PublishedResult(
            row["round"],
            row["submitter"],
            row["system"],
            int(row["global_batch_size"]),
            tuple(map(float, row["epochs_to_target_each_converged_run"].split())),
        )
        for row in csv.DictReader(line for line in lines if not line.startswith("#"))
    ]
    return sorted(results, key=lambda result: (result.batch_size, result.round))
