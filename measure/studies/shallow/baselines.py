"""`cepheid measure baselines`: which targets are reached without the task, and by what margins."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cepheid.compliance.score import margins
from cepheid.compliance.score.margins import Margin
from cepheid.measure.engine import trainings
from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.own_process import run_alone
from cepheid.measure.engine.study import Column, Measured, Request, Study, Table
from cepheid.measure.studies.shallow.trial import (
    Baseline,
    Trial,
    try_out,
)
from cepheid.reference.session.observer import Observer, prepare_data
from cepheid.rules import definition as definitions
from cepheid.rules import evidence, extras
from cepheid.rules.definition import Definition
from cepheid.rules.evidence import BASELINES_FILE, Curve
from cepheid.rules.host import require_checkout

OF_PICTURES = ("random_patches", "two_layers", "gradients", "neighbours")
ROWS: Mapping[str, Sequence[str]] = {
    "resnet50": OF_PICTURES,
    "kfac": OF_PICTURES,
    "chest_xray": OF_PICTURES,
    "galaxy_shape": ("moments",),
    "gnmt": ("dictionary",),
    "transformer": ("dictionary",),
    "video_prediction": ("copy_last", "retrieval", "linear"),
    "galaxy_generation": ("shifted", "rescaled", "blended", "warped"),
}


@dataclass(frozen=True)
class Row:
    """A baseline with a seed on a benchmark; ``metrics`` are None where it was not quick enough."""

    benchmark: str
    baseline: str
    seed: int
    seconds: float
    metrics: Mapping[str, float] | None
    targets: str
    reaches: bool


def find_baseline(name: str) -> Baseline:
    """Return a baseline with the function that runs it."""
    from cepheid.measure.studies.shallow import copied, frames, galaxies, pictures, sentences

    runs = {
        "random_patches": pictures.run_patches,
        "two_layers": pictures.run_two_layers,
        "gradients": pictures.run_gradients,
        "neighbours": pictures.run_neighbours,
        "moments": galaxies.run_moments,
        "dictionary": sentences.run_dictionary,
        "copy_last": frames.run_copies,
        "retrieval": frames.run_retrieval,
        "linear": frames.run_linear,
        "shifted": copied.alter(copied.shift),
        "rescaled": copied.alter(copied.rescale),
        "blended": copied.alter(copied.blend),
        "warped": copied.alter(copied.warp),
    }
    return Baseline(name, runs[name])


def plan(request: Request) -> Sequence[Definition]:
    """Return the definitions that are asked for. Raises UserError for unknown names."""
    names = request.arguments.benchmarks or definitions.names()
    extras.require("torch", "scipy")
    require_checkout("a record of baselines")
    return [definitions.load(name, "mini") for name in names]


def measure(request: Request, wanted: Sequence[Definition]) -> Measured:
    """Try what is not recorded, one baseline after the other; return all with the margins."""
    rows: list[Row] = []
    for one in wanted:
        for name in ROWS.get(one.name, ()):
            for seed in range(1, request.arguments.seeds + 1):
                record_missing(one, name, seed, request.data_root, request.observer)
        found = evidence.load(one, BASELINES_FILE)
        rows += [_describe(one, curve) for curve in (found.curves if found else ())]
    all_margins = [(one, margins.find_margins(one)) for one in wanted]
    table = Table("margins, in standard deviations of the correct seeds", MARGINS, all_margins)
    none = ", ".join(one.name for one in wanted if one.name not in ROWS)
    facts = {
        "baselines": [asdict(row) for row in rows],
        "margins": {one.name: asdict(found) for one, found in all_margins},
    }
    return Measured(
        rows,
        "shallow baselines, mini scale",
        tables=[table],
        notes=[f"no baseline of the list applies to: {none}"] if none else [],
        facts=facts,
        is_fine=not any(row.reaches for row in rows),
    )


def record_missing(
    one: Definition, name: str, seed: int, data_root: Path, observer: Observer
) -> None:
    """Try a baseline with a seed and record it, unless it is recorded for this definition."""
    recorded = evidence.load(one, BASELINES_FILE)
    if recorded and any((curve.variant, curve.seed) == (name, seed) for curve in recorded.curves):
        return
    extras.require_for_runs(one.extras)
    prepare_data(one, data_root, observer)
    observer.tell(f"{one.name}: {name}, seed {seed}")
    trainings.keep(one, run_alone(_try, one.name, name, seed, data_root), BASELINES_FILE)


def _try(benchmark: str, name: str, seed: int, data_root: Path) -> Curve:
    import torch

    from cepheid.reference.machine.hardware import read_hardware

    torch.set_num_threads(1)
    trial = Trial(definitions.load(benchmark, "mini"), data_root, seed)
    processor = str(read_hardware(data_root)["processor"])
    machine = {"framework": f"torch {torch.__version__}", "processor": processor}
    return replace(try_out(find_baseline(name), trial), measured=machine)


def _describe(one: Definition, curve: Curve) -> Row:
    metrics = curve.evaluations[-1][1] if curve.evaluations else None
    reaches = metrics is not None and one.is_reached_by(metrics)
    named = [target.metric for target in one.quality]
    shown = metrics and {name: metrics[name] for name in named if name in metrics}
    targets = " and ".join(map(str, one.quality))
    return Row(one.name, curve.variant, curve.seed, curve.seconds, shown, targets, reaches)


def _format_metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def _format_margin(margin: Margin | None) -> str:
    return "" if margin is None else str(margin)


MARGINS = (
    Column("benchmark", lambda row: row[0].name),
    Column("worst correct seed", lambda row: _format_margin(row[1].correct)),
    Column("best broken variant", lambda row: _format_margin(row[1].broken)),
    Column("best shallow baseline", lambda row: _format_margin(row[1].shallow)),
)
STUDY = Study(
    "baselines",
    plan,
    measure,
    (
        Column("benchmark", "benchmark"),
        Column("baseline", "baseline"),
        Column("seed", "seed"),
        Column("seconds", "seconds", "{:.1f}"),
        Column("best", "metrics", _format_metrics),
        Column("targets", "targets"),
        Column("", lambda row: "reaches them" if row.reaches else "misses"),
    ),
    **read_command("baselines"),
)
