"""The time to train on machines that are not here: `cepheid measure project`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cepheid.measure.engine import options
from cepheid.measure.engine.study import Column, Help, Measured, Request, Study, Table
from cepheid.measure.studies.projection.links import find_link, read_links
from cepheid.measure.studies.projection.model import SHAPES, Network
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.measure.studies.projection.published import Family, Prediction
    from cepheid.measure.studies.scaling.points import Point

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


def load_families(request: Request) -> "Sequence[Family]":
    """Return the families of published times. Raises UserError where there are none."""
    from cepheid.measure.studies.projection import published

    return published.load_families(request.definition.name)


def predict_published(_: Request, families: "Sequence[Family]") -> Measured:
    """Predict the times of each family from two of them."""
    from cepheid.measure.studies.projection.published import list_fits, predict_family

    predicted = {
        family.name: [predict_family(family, pair) for pair in list_fits(family)]
        for family in families
    }
    facts = {
        name: [[{**asdict(row), "error": row.error} for row in rows] for rows in fits]
        for name, fits in predicted.items()
    }
    tables = [_make_table(family, predicted[family.name]) for family in families]
    return Measured(tables=tables, facts=facts, found=(families, predicted))


def _make_table(family: "Family", fits: "Sequence[Sequence[Prediction]]") -> Table:
    """Return a row for each system, which is its prediction by each fit."""
    columns = [
        Column("system", lambda row: row[0].system),
        Column("devices", lambda row: row[0].known.devices, "{:,}".format),
        Column("batch", lambda row: row[0].known.batch_size, "{:,}".format),
        Column("epochs", lambda row: row[0].known.epochs, "{:.1f}".format),
        Column("minutes, published", lambda row: row[0].known.seconds / 60, "{:.3f}".format),
    ]
    hows = zip(range(len(fits)), ("extrapolated", "interpolated"), strict=False)
    columns += [column for number, how in hows for column in _list_fit(number, how)]
    return Table(family.title, columns, list(zip(*fits, strict=True)))


def _list_fit(number: int, how: str) -> list[Column]:
    return [
        Column(how, lambda row: row[number].predicted_seconds / 60, "{:.3f}".format),
        Column(f"error, {how}", lambda row: _describe_error(row[number])),
    ]


def _describe_error(prediction: "Prediction") -> str:
    return "fitted" if prediction.is_fitted else f"{prediction.error:+.1%}"


def draw_published(path: Path, _: Request, measured: Measured) -> list[Path]:
    """Draw prediction beside publication."""
    from cepheid.measure.studies.projection import figure

    figure.draw_published(path, *measured.found)
    return [path]


@dataclass(frozen=True)
class Plan:
    """What is projected: points that were measured here, to devices in a network."""

    points: "Sequence[Point]"
    network: Network
    devices: tuple[int, ...]
    batch: int


def plan_projection(request: Request) -> Plan:
    """Read what `cepheid measure scaling` wrote. Raises UserError for what cannot be projected."""
    from cepheid.measure.studies.projection import measured
    from cepheid.measure.studies.scaling.records import read_scaling

    definition, asked = request.definition, request.arguments
    within = find_link(asked.within)
    between = find_link(asked.between) if asked.between else within
    if not asked.faster > 0 or not 0 <= asked.overlap <= 1:
        raise UserError("--faster must be above 0, and --overlap from 0 to 1")
    source = asked.source or Path("results", f"scaling-{definition.name}-{definition.scale}")
    configuration, points = read_scaling(source)
    for key, expected in (("benchmark", definition.name), ("scale", definition.scale)):
        if configuration[key] != expected:
            raise UserError(
                f"--from {source}: its {key} is {configuration[key]}, expected {expected}"
            )
    measured.refuse_sharing([str(each) for each in configuration.get("overrides", ())])
    batch = points[0].alone_batch_size if asked.batch_size is None else asked.batch_size
    network = Network(within, between, asked.devices_per_node, asked.sum)
    return Plan(points, network, asked.devices, batch)


def project(request: Request, plan: Plan) -> Measured:
    """Project the measured step, and check the model with what was measured on several ranks."""
    from cepheid.measure.studies.projection import measured

    definition, asked, points = request.definition, request.arguments, plan.points
    checks = [check for point in points if (check := measured.check_point(point))]
    here = measured.read_costs(points[0])
    costs = replace(
        here,
        fixed_seconds=here.fixed_seconds / asked.faster,
        sample_seconds=here.sample_seconds / asked.faster,
        update_seconds=here.update_seconds / asked.faster,
        input_samples_per_second=here.input_samples_per_second * asked.faster,
        overlap=asked.overlap,
        collectives=max(measured.read_costs(point).collectives for point in points),
    )
    epochs = measured.read_epochs(definition)
    training = measured.make_training(definition, epochs or ANY_EPOCHS)
    rows = measured.project(costs, plan.network, training, plan.devices, plan.batch)
    label = "to the target" if epochs else "for an epoch"
    title = _name_projection(definition, plan.network, asked.faster)
    notes = []
    if len(rows) < len(plan.devices):
        more = plan.devices[len(rows)]
        notes.append(f"{more:,} devices and more would have less than a sample each")
    rate = float(costs.input_samples_per_second)
    facts = {
        "network": asdict(plan.network),
        "costs": {
            **asdict(costs), "input_samples_per_second": None if rate == float("inf") else rate
        },
        "checks": [asdict(check) for check in checks],
        "projections": [asdict(row) for row in rows],
    }  # fmt: skip
    tables = [Table("Measured here, beside the model", CHECKS, checks)] if checks else []
    tables.append(Table(title, _list_columns(label), rows))
    return Measured(tables=tables, notes=notes, facts=facts, found=(title, rows, label))


def _name_projection(definition: Definition, network: Network, faster: float) -> str:
    device = "the measured device" if faster == 1 else f"a device {faster:g} times as fast"
    return (
        f"{definition.name}, {definition.scale} scale, projected: {device}, "
        f"{network.devices_per_node} a node, {network.within.name} within, "
        f"{network.between.name} between nodes"
    )


def _describe_check(pair: tuple[float | None, float]) -> str:
    """Return predicted milliseconds with their error, "" where nothing was predicted."""
    predicted, seconds = pair
    if predicted is None:
        return ""
    return f"{1000 * predicted:,.1f} ({predicted / seconds - 1:+.1%})"


CHECKS = (
    Column("ranks", lambda check: check.ranks),
    Column("step, ms", lambda check: 1000 * check.measured_seconds, "{:,.1f}".format),
    Column(
        "predicted",
        lambda check: (check.predicted_seconds, check.measured_seconds),
        _describe_check,
    ),
    Column(
        "predicted, processors shared",
        lambda check: (check.shared_seconds, check.measured_seconds),
        _describe_check,
    ),
)


def _list_columns(label: str) -> "Sequence[Column]":
    return (
        Column("devices", lambda row: row.devices, "{:,}".format),
        Column("batch", lambda row: row.batch_size, "{:,}".format),
        Column("step, ms", lambda row: 1000 * row.step.seconds, "{:,.3f}".format),
        Column("compute", lambda row: row.step.compute / row.step.seconds, "{:.0%}".format),
        Column("communication", lambda row: row.step.exposed / row.step.seconds, "{:.0%}".format),
        Column("update", lambda row: row.step.update / row.step.seconds, "{:.0%}".format),
        Column("input", lambda row: row.step.waiting / row.step.seconds, "{:.0%}".format),
        Column("samples/s", lambda row: row.samples_per_second, "{:,.0f}".format),
        Column("efficiency", lambda row: row.efficiency, "{:.2f}".format),
        Column("epochs", lambda row: row.epochs, "{:.1f}".format),
        Column(f"minutes {label}", lambda row: row.seconds / 60, "{:,.3f}".format),
    )


def draw_projection(path: Path, _: Request, measured: Measured) -> list[Path]:
    """Draw the time by devices, and what a step is made of."""
    from cepheid.measure.studies.projection import figure

    figure.draw_projection(path, *measured.found)
    return [path]


HELP = Help(DESCRIPTION, EXAMPLES)
PUBLISHED = Study("project", HELP, (), load_families, predict_published, figure=draw_published)
STUDY = Study(
    name="project",
    help=HELP,
    options=(
        *options.offer_benchmark(),
        options.Option(
            "--published",
            {"action": "store_true", "help": "predict published times from two of them"},
        ),
        options.Option(
            "--from",
            {"dest": "source", "type": Path, "metavar": "DIR",
             "help": "what `cepheid measure scaling` wrote (default: "
             "results/scaling-<benchmark>-<scale>)"},
        ),
        options.offer_numbers(
            "--devices",
            {"metavar": "N,…", "default": DEVICES,
             "help": "numbers of devices (default: 1, 2, 4, … 2,048)"},
            example="8,64,512",
            most=MOST_DEVICES,
        ),
        options.Option(
            "--within",
            {"default": "gloo", "metavar": "LINK", "help": "links in a node (default: gloo)"},
        ),
        options.Option(
            "--between", {"metavar": "LINK", "help": "links between nodes (default: as within)"}
        ),
        options.Option(
            "--devices-per-node",
            {"type": int, "default": 8, "metavar": "K", "help": "default: 8"},
            least=1,
        ),
        options.Option(
            "--sum",
            {"choices": SHAPES, "default": "tree",
             "help": "how gradients are summed: rings in nodes and a tree or rings (nodes) between "
             "them, one ring, or rings along rows and columns of a torus (default: tree)"},
        ),
        options.Option(
            "--overlap",
            {"type": float, "default": 0.0, "metavar": "X",
             "help": "the share of the backward pass that hides communication, 0 to 1 "
             "(default: 0)"},
        ),
        options.Option(
            "--faster",
            {"type": float, "default": 1.0, "metavar": "X",
             "help": "how many times as fast as the measured one a device is (default: 1)"},
        ),
        options.Option(
            "--batch-size",
            {"type": int, "metavar": "B", "help": "samples of a device (default: as measured)"},
            least=1,
        ),
        options.Option(
            "--figure", {"type": Path, "metavar": "FILE", "help": "draw the prediction as PNG"}
        ),
        options.Option(
            "--output", {"type": Path, "metavar": "FILE", "help": "write all numbers as JSON"}
        ),
    ),
    arms=plan_projection,
    measure=project,
    figure=draw_projection,
    others={"published": PUBLISHED},
)  # fmt: skip
