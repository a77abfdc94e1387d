"""`cepheid measure project`: the time to train on machines that are not here."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.measure.studies.projection.links import find_link, read_links
from cepheid.measure.studies.projection.model import SHAPES, Network
from cepheid.rules import definition as definitions
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.tools.console import writing
from cepheid.tools.console.arguments import add_benchmark, make_command_parser
from cepheid.tools.console.program import EXIT_FINE, run_tool

if TYPE_CHECKING:
    from cepheid.measure.studies.projection.measured import Check, Projection
    from cepheid.measure.studies.projection.published import Family, Prediction

DESCRIPTION = f"""\
Predict the time to train on N devices with a cost model: the seconds of a step on one device, the
bytes of the gradients over links of which latency and rate are known, input, update, evaluation,
and the samples to the target by batch size.

  from a measurement  `cepheid measure scaling NAME` has measured a step; what it measured on
                      several ranks is predicted too, which shows how well the model does
  --published         two published times are fitted, and the others predicted from them, with the
                      error of each (benchmarks/NAME/projection.yaml)

Epochs to the target are those of the reference convergence points (rcp.json). The global batch
grows with the devices up to the largest of these points; more devices share it.

Links: {", ".join(read_links())}
(measure/studies/projection/links.yaml has their sources).
"""
EXAMPLES = """\
examples:
  cepheid measure project resnet50 --published --figure published.png
  cepheid measure project resnet50 --within nvlink4 --between infiniband_ndr --faster 5000
      the measured step on a device that is 5,000 times as fast
  cepheid measure project galaxy_shape --within ethernet_10g --devices-per-node 1 --devices 1,2,4,8

exit codes: 0 fine; 2 wrong use
"""
MOST_DEVICES = 2**20
DEVICES = tuple(2**power for power in range(12))
ANY_EPOCHS = {2**40: 1.0}
"""One epoch at any batch size, where nobody knows how many the target takes."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `cepheid measure project`."""
    parser = make_command_parser("measure project", DESCRIPTION, EXAMPLES)
    add_benchmark(parser)
    add = parser.add_argument
    add("--published", action="store_true", help="predict published times from two of them")
    add(
        "--from",
        dest="source",
        type=Path,
        metavar="DIR",
        help="what `cepheid measure scaling` wrote (default: results/scaling-<benchmark>-<scale>)",
    )
    add("--devices", metavar="N,…", help="numbers of devices (default: 1, 2, 4, … 2,048)")
    add("--within", default="gloo", metavar="LINK", help="links in a node (default: gloo)")
    add("--between", metavar="LINK", help="links between nodes (default: as within)")
    add("--devices-per-node", type=int, default=8, metavar="K", help="default: 8")
    add(
        "--sum",
        choices=SHAPES,
        default="tree",
        help="how gradients are summed: rings in nodes and a tree or rings (nodes) between them, "
        "one ring, or rings along rows and columns of a torus (default: tree)",
    )
    add(
        "--overlap",
        type=float,
        default=0.0,
        metavar="X",
        help="the share of the backward pass that hides communication, 0 to 1 (default: 0)",
    )
    add(
        "--faster",
        type=float,
        default=1.0,
        metavar="X",
        help="how many times as fast as the measured one a device is (default: 1)",
    )
    add("--batch-size", type=int, metavar="B", help="samples of a device (default: as measured)")
    add("--figure", type=Path, metavar="FILE", help="draw the prediction as PNG")
    add("--output", type=Path, metavar="FILE", help="write all numbers as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Predict, print tables, draw a figure."""
    arguments = make_parser().parse_args(argv)
    definition = definitions.load(arguments.benchmark, arguments.scale)
    facts = (
        _project_published(definition, arguments.figure)
        if arguments.published
        else _project_measured(definition, arguments)
    )
    if arguments.output:
        writing.replace_file(arguments.output, json.dumps(facts, indent=1) + "\n")
        print(f"written: {arguments.output}")
    return EXIT_FINE


def _project_published(definition: Definition, figure: Path | None) -> dict[str, Any]:
    from cepheid.measure.studies.projection.published import (
        list_fits,
        load_families,
        predict_family,
    )

    families = load_families(definition.name)
    predicted = {
        family.name: [predict_family(family, pair) for pair in list_fits(family)]
        for family in families
    }
    for family in families:
        print(f"{family.title}\n{_format_published(family, predicted[family.name])}\n")
    if figure:
        from cepheid.measure.studies.projection.figure import draw_published

        draw_published(figure, families, predicted)
        print(f"written: {figure}")
    return {
        name: [[{**asdict(row), "error": row.error} for row in rows] for rows in fits]
        for name, fits in predicted.items()
    }


def _format_published(family: "Family", fits: Sequence[Sequence["Prediction"]]) -> str:
    from tabulate import tabulate

    rows = []
    for system in zip(*fits, strict=True):
        known = system[0].known
        row = {
            "system": system[0].system,
            "devices": f"{known.devices:,}",
            "batch": f"{known.batch_size:,}",
            "epochs": f"{known.epochs:.1f}",
            "minutes, published": f"{known.seconds / 60:.3f}",
        }
        for how, each in zip(("extrapolated", "interpolated"), system, strict=False):
            row[how] = f"{each.predicted_seconds / 60:.3f}"
            row[f"error, {how}"] = "fitted" if each.is_fitted else f"{each.error:+.1%}"
        rows.append(row)
    return tabulate(rows, headers="keys", disable_numparse=True)


def _project_measured(definition: Definition, arguments: argparse.Namespace) -> dict[str, Any]:
    from cepheid.measure.studies.projection import measured
    from cepheid.measure.studies.scaling.records import read_scaling

    devices = _pick_devices(arguments.devices)
    network = _make_network(arguments)
    if not arguments.faster > 0 or not 0 <= arguments.overlap <= 1:
        raise UserError("--faster must be above 0, and --overlap from 0 to 1")
    source = arguments.source or Path("results", f"scaling-{definition.name}-{definition.scale}")
    configuration, points = read_scaling(source)
    for key, expected in (("benchmark", definition.name), ("scale", definition.scale)):
        if configuration[key] != expected:
            raise UserError(
                f"--from {source}: its {key} is {configuration[key]}, expected {expected}"
            )
    measured.refuse_sharing([str(each) for each in configuration.get("overrides", ())])
    batch = points[0].alone_batch_size if arguments.batch_size is None else arguments.batch_size
    if batch < 1:
        raise UserError(f"--batch-size {batch}: expected 1 or more")
    checks = [check for point in points if (check := measured.check_point(point))]
    if checks:
        print(f"Measured here, beside the model\n{_format_checks(checks)}\n")
    here = measured.read_costs(points[0])
    costs = replace(
        here,
        fixed_seconds=here.fixed_seconds / arguments.faster,
        sample_seconds=here.sample_seconds / arguments.faster,
        update_seconds=here.update_seconds / arguments.faster,
        input_samples_per_second=here.input_samples_per_second * arguments.faster,
        overlap=arguments.overlap,
        collectives=max(measured.read_costs(point).collectives for point in points),
    )
    epochs = measured.read_epochs(definition)
    training = measured.make_training(definition, epochs or ANY_EPOCHS)
    rows = measured.project(costs, network, training, devices, batch)
    label = "to the target" if epochs else "for an epoch"
    title = _name_projection(definition, network, arguments.faster)
    print(f"{title}\n{_format_rows(rows, label)}")
    if len(rows) < len(devices):
        print(f"{devices[len(rows)]:,} devices and more would have less than a sample each")
    if arguments.figure:
        from cepheid.measure.studies.projection.figure import draw_projection

        draw_projection(arguments.figure, title, rows, label)
        print(f"written: {arguments.figure}")
    return {
        "network": asdict(network),
        "costs": {**asdict(costs), "input_samples_per_second": _none_if_unbounded(costs)},
        "checks": [asdict(check) for check in checks],
        "projections": [asdict(row) for row in rows],
    }


def _none_if_unbounded(costs: Any) -> float | None:
    rate = float(costs.input_samples_per_second)
    return None if rate == float("inf") else rate


def _pick_devices(text: str | None) -> tuple[int, ...]:
    if text is None:
        return DEVICES
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= MOST_DEVICES for part in parts):
        raise UserError(
            f"--devices {text}: expected numbers up to {MOST_DEVICES:,} with commas between them, "
            "e.g. 8,64,512"
        )
    return tuple(sorted({int(part) for part in parts}))


def _make_network(arguments: argparse.Namespace) -> Network:
    if arguments.devices_per_node < 1:
        raise UserError(f"--devices-per-node {arguments.devices_per_node}: expected 1 or more")
    within = find_link(arguments.within)
    between = find_link(arguments.between) if arguments.between else within
    return Network(within, between, arguments.devices_per_node, arguments.sum)


def _name_projection(definition: Definition, network: Network, faster: float) -> str:
    device = "the measured device" if faster == 1 else f"a device {faster:g} times as fast"
    return (
        f"{definition.name}, {definition.scale} scale, projected: {device}, "
        f"{network.devices_per_node} a node, {network.within.name} within, "
        f"{network.between.name} between nodes"
    )


def _format_checks(checks: Sequence["Check"]) -> str:
    from tabulate import tabulate

    rows = []
    for check in checks:
        row = {"ranks": f"{check.ranks}", "step, ms": f"{1000 * check.measured_seconds:,.1f}"}
        predictions: Mapping[str, float | None] = {
            "predicted": check.predicted_seconds,
            "predicted, processors shared": check.shared_seconds,
        }
        for name, seconds in predictions.items():
            if seconds is not None:
                error = seconds / check.measured_seconds - 1
                row[name] = f"{1000 * seconds:,.1f} ({error:+.1%})"
        rows.append(row)
    return tabulate(rows, headers="keys", disable_numparse=True)


def _format_rows(rows: Sequence["Projection"], label: str) -> str:
    from tabulate import tabulate

    return tabulate(
        [
            {
                "devices": f"{row.devices:,}",
                "batch": f"{row.batch_size:,}",
                "step, ms": f"{1000 * row.step.seconds:,.3f}",
                "compute": f"{row.step.compute / row.step.seconds:.0%}",
                "communication": f"{row.step.exposed / row.step.seconds:.0%}",
                "update": f"{row.step.update / row.step.seconds:.0%}",
                "input": f"{row.step.waiting / row.step.seconds:.0%}",
                "samples/s": f"{row.samples_per_second:,.0f}",
                "efficiency": f"{row.efficiency:.2f}",
                "epochs": f"{row.epochs:.1f}",
                f"minutes {label}": f"{row.seconds / 60:,.3f}",
            }
            for row in rows
        ],
        headers="keys",
        disable_numparse=True,
    )


if __name__ == "__main__":
    run_tool(main)
