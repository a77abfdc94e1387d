"""Epochs to the target: table 1 and figure 8 of Kumar et al. 2019 (arXiv:1909.09756), at our scale.

    python -m benchmarks.resnet50.epochs momentum --output FILE.json [--seeds N] [--set KEY=VALUE]
    python -m benchmarks.resnet50.epochs batch-size [--figure FILE.png]

``momentum`` trains with LARS in its published forms: scaled momentum, unscaled, and unscaled with
the momentum tuned. Each run is recorded as it ends; the same command makes the missing ones.
``batch-size`` trains nothing: it sets the reference convergence points that ``cepheid rcp``
measured beside the published epochs to target.
"""

import argparse
import csv
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from rules import definition, rcp
from rules.definition import Definition
from rules.errors import UserError

FORMS: Mapping[str, Sequence[str]] = {
    "scaled": ("opt_momentum_form=scaled",),
    "unscaled": ("opt_momentum_form=unscaled",),
    "unscaled, momentum 0.929": ("opt_momentum_form=unscaled", "opt_momentum=0.929"),
}
PUBLISHED_EPOCHS = {"scaled": 72.8, "unscaled": 70.6, "unscaled, momentum 0.929": 64.0}
PUBLISHED = Path(__file__).with_name("published_epochs.csv")


@dataclass(frozen=True)
class PublishedResult:
    """One result of an MLPerf round: tuned, and at full scale."""

    round: str
    submitter: str
    system: str
    batch_size: int
    epochs: tuple[float, ...]


def published() -> list[PublishedResult]:
    """All that are on record, by batch size."""
    lines = PUBLISHED.read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    found = [
        PublishedResult(
            row["round"],
            row["submitter"],
            row["system"],
            int(row["global_batch_size"]),
            tuple(map(float, row["epochs_to_target_each_converged_run"].split())),
        )
        for row in rows
    ]
    return sorted(found, key=lambda result: (result.batch_size, result.round))


# Table 1 -----------------------------------------------------------------------------------------


def momentum(arguments: argparse.Namespace) -> None:
    """Make the runs that are missing, print the table."""
    chosen = definition.load("resnet50", arguments.scale)
    settings = ["opt_name=lars", *arguments.overrides]
    record = _record(arguments.output, chosen, settings)
    wanted = [(form, seed) for seed in range(1, arguments.seeds + 1) for form in FORMS]
    have = {(run["form"], run["seed"]) for run in record["runs"]}
    missing = [key for key in wanted if key not in have]
    for run in _trained(chosen, missing, settings, arguments.data):
        record["runs"].append(run)
        partial = arguments.output.with_name(arguments.output.name + ".partial")
        partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        partial.replace(arguments.output)
        print(f"{run['form']}, seed {run['seed']}: {run['epochs'] or 'target missed'}", flush=True)
    print(tabulate(_rows(record["runs"]), headers="keys"))


def _record(path: Path, chosen: Definition, settings: Sequence[str]) -> dict[str, Any]:
    """What was measured before with the same settings. Raises UserError for others."""
    asked = {"definition_digest": chosen.digest, "settings": list(settings)}
    if not path.exists():
        return {**asked, "runs": []}
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if {key: record.get(key) for key in asked} != asked:
        raise UserError(f"{path}: holds another measurement; choose another --output")
    return record


def _trained(
    chosen: Definition, wanted: Sequence[tuple[str, int]], settings: Sequence[str], root: Path
) -> Iterator[dict[str, Any]]:
    if not wanted:
        return
    from benchmarks.resnet50.task import create
    from reference import data, targets
    from reference.config import configure
    from reference.distributed import started

    data.prepare(chosen.data, root, lambda done, total: None)
    with started() as ranks:
        for form, seed in wanted:
            overrides = [*settings, *FORMS[form]]
            config = configure(
                chosen, division="open", overrides=overrides, data_root=root, seed=seed
            )
            curve, _ = targets.measure(form, create, config, ranks, lambda progress: None)
            samples = curve.samples_to_target(chosen)
            epochs = samples / chosen.train_samples if samples else None
            best = max((quality["accuracy"] for _, quality in curve.evaluations), default=0.0)
            yield {"form": form, "seed": seed, "epochs": epochs, "best_accuracy": best}


def _rows(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for form in FORMS:
        ours = [run["epochs"] for run in runs if run["form"] == form]
        reached = [epochs for epochs in ours if epochs]
        rows.append(
            {
                "momentum": form,
                "epochs to target": ", ".join(f"{epochs:.0f}" for epochs in reached),
                "mean": round(statistics.mean(reached), 1) if reached else None,
                "missed": len(ours) - len(reached),
                "published, batch 32,768": PUBLISHED_EPOCHS[form],
            }
        )
    return rows


# Figure 8 ----------------------------------------------------------------------------------------


def batch_size(arguments: argparse.Namespace) -> None:
    """Print the points, and draw them where a figure is asked for."""
    chosen = definition.load("resnet50", arguments.scale)
    points = rcp.load("resnet50", arguments.scale)
    ours = {
        point.batch_size: statistics.mean(point.samples) / chosen.train_samples
        for point in (points.points if points else ())
        if point.samples
    }
    rows = [
        {"batch size": size, "epochs": round(epochs, 1), "of": f"reference, {arguments.scale}"}
        for size, epochs in sorted(ours.items())
    ]
    rows += [
        {
            "batch size": result.batch_size,
            "epochs": round(statistics.mean(result.epochs), 1),
            "of": f"as published: {result.round}, {result.submitter} {result.system}",
        }
        for result in published()
    ]
    print(tabulate(rows, headers="keys"))
    if not ours:
        print(
            f"of the reference nothing is measured: `cepheid rcp resnet50 --scale {chosen.scale}`"
        )
    if arguments.figure:
        _draw(ours, arguments)


def _draw(ours: Mapping[int, float], arguments: argparse.Namespace) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(sorted(ours), [ours[size] for size in sorted(ours)], "o-")
    left.set_title(f"reference, {arguments.scale} scale")
    for name in sorted({result.round for result in published()}):
        chosen = [result for result in published() if result.round == name]
        means = [statistics.mean(result.epochs) for result in chosen]
        right.plot([result.batch_size for result in chosen], means, ".", label=name)
    right.set_title("full scale, as published: tuned submissions")
    right.legend()
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("global batch size")
        axes.set_ylabel("epochs to target")
        axes.set_ylim(bottom=0)
    figure.savefig(arguments.figure, dpi=120)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("momentum", help="table 1")
    first.add_argument("--output", type=Path, required=True, metavar="FILE.json")
    first.add_argument("--seeds", type=int, default=5, metavar="N")
    first.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    first.add_argument("--data", type=Path, default=Path("data"))
    first.set_defaults(do=momentum)
    second = commands.add_parser("batch-size", help="figure 8")
    second.add_argument("--figure", type=Path, metavar="FILE.png")
    second.set_defaults(do=batch_size)
    for command in (first, second):
        command.add_argument("--scale", default="mini", help="mini (default) or full")
    arguments = parser.parse_args(argv)
    arguments.do(arguments)


if __name__ == "__main__":
    main()
