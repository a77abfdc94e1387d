"""The time to train on machines that are not here: `cepheid measure project`."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from cepheid.measure.engine import options
from cepheid.measure.engine.options import Option
from cepheid.measure.engine.study import (
    OURS,
    Column,
    Measured,
    Request,
    Study,
    Table,
    draw_figure,
)
from cepheid.measure.studies.projection import cost_model, device, published
from cepheid.measure.studies.projection.cost_model import (
    SHAPES,
    Costs,
    Link,
    Network,
    Training,
    find_link,
    predict_step,
    read_links,
)
from cepheid.measure.studies.projection.known import FILE, list_known
from cepheid.measure.studies.scaling import points as scaling
from cepheid.measure.studies.scaling.points import LinkTimes, Point, name_arm
from cepheid.reference.session.request import replace_old_keys
from cepheid.rules import rcp
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError

DESCRIPTION = f"""\
Predict the time to train on N devices with a cost model: the seconds of a step and of a sample,
the bytes of the gradients over links of which latency and rate are known, input, update,
evaluation, and the samples to the target by batch size.

  from a measurement  `cepheid measure scaling NAME` has measured a step; what it measured on
                      several ranks is predicted too, which shows how well the model does
  --published         each published time is predicted from those of other sizes, with its error
  --like FAMILY       a device with your peak, bandwidth and links: minutes, kWh and cost, each in
                      a range, from the published times of a family

--published and --like need no measurement; benchmarks: {", ".join(sorted(list_known()))}
({FILE} of a benchmark, and measure/studies/projection/*_times.yaml).

A measured step is projected with the epochs of the reference convergence points (rcp.json), a
published one with those that were published. The global batch grows with the devices up to the
largest that is known; more devices share it.

Links: {", ".join(read_links())}
(measure/studies/projection/links.yaml has their sources).
"""
EXAMPLES = """\
examples:
  cepheid measure project resnet50 --published --figure published.png
  cepheid measure project resnet50 --like h100 --peak 312 --bandwidth 2039 --within nvlink3 \\
      --between infiniband_hdr --devices 1,8,64,512,2048 --watts 800 --idle-watts 300 --price 1.5
      a device of 312 TFLOP/s and 2,039 GB/s that draws 800 W, or 300 W while it waits, and
      costs 1.5 an hour
  cepheid measure project resnet50 --within nvlink4 --between infiniband_ndr --faster 5000
      the measured step on a device that is 5,000 times as fast

exit codes: 0 fine; 2 wrong use
"""
MOST_DEVICES = 2**20
DEVICES = tuple(2**power for power in range(12))
ANY_EPOCHS = {2**40: 1.0}
"""One epoch at any batch size, where nobody knows how many the target takes."""


@dataclass(frozen=True)
class Check:
    """A measured step beside the predicted one, in seconds.

    ``shared_seconds`` is predicted from ranks that train independently at the same time, so that
    what the ranks take from each other is no part of its error; None where it was not measured.
    """

    ranks: int
    measured_seconds: float
    predicted_seconds: float
    shared_seconds: float | None


def refuse_sharing(overrides: Sequence[str]) -> None:
    """Raise UserError where ranks shared images or a model: the costs of that are not known."""
    for override in replace_old_keys(overrides)[0]:
        setting, _, value = override.partition("=")
        if setting in (scaling.PARTITIONS, *scaling.SHARING) and value != "1":
            raise UserError(
                f"the ranks of this measurement shared their work ({override}), and the model "
                f"knows only ranks with a batch of their own; fix: measure without {setting}"
            )


def read_costs(point: Point, arm: str = scaling.ALONE) -> Costs:
    """Return the costs of a step as a rank has them by itself, without communication.

    The step of the arm is divided as the profile of the first rank alone says.
    """
    kind = point.inputs[-1]
    seconds = statistics.median(point.seconds[name_arm(arm, kind)])
    total = sum(point.alone_phases_ms.values())
    update, other = (
        seconds * point.alone_phases_ms.get(phase, 0.0) / total for phase in ("update", "other")
    )
    other = max(0.0, other)
    real = statistics.median(point.rates(scaling.ALONE, point.inputs[0]))
    is_fed = real >= scaling.BOUND * statistics.median(point.rates(scaling.ALONE, kind))
    return Costs(
        fixed_seconds=other,
        sample_seconds=(seconds - update - other) / point.alone_batch_size,
        gradient_bytes=point.gradient_bytes,
        update_seconds=update,
        collectives=max(0, point.link.collectives - 1) if point.link else 0,
        input_samples_per_second=math.inf if is_fed else real,
    )


def read_link(times: LinkTimes, ranks: int) -> Link:
    """Return the link whose ring all-reduce takes the two measured times."""
    messages = 2 * (ranks - 1)
    seconds = times.large_seconds - times.small_seconds
    rate = messages * (times.large_bytes - times.small_bytes) / ranks / seconds
    latency = times.small_seconds / messages - times.small_bytes / ranks / rate
    return Link("measured", max(0.0, latency), rate)


def check_point(point: Point) -> Check | None:
    """Predict the step of all ranks from that of one; None for a single rank."""
    if point.link is None:
        return None
    kind = point.inputs[-1]
    link = read_link(point.link, point.ranks)
    network = Network(link, link, point.ranks, "ring")

    def predict(arm: str) -> float:
        costs = read_costs(point, arm)
        return predict_step(costs, network, point.ranks, point.batch_size).seconds

    return Check(
        point.ranks,
        statistics.median(point.seconds[name_arm(scaling.TOGETHER, kind)]),
        predict(scaling.ALONE),
        predict(scaling.INDEPENDENT) if point.ceiling() else None,
    )


def read_epochs(definition: Definition) -> Mapping[int, float]:
    """Return the epochs to the target by batch size that the reference needed, or nothing."""
    known = rcp.load(definition.name, definition.scale)
    if known is None or not known.belongs_to(definition):
        return {}
    return {
        point.batch_size: statistics.mean(point.samples) / definition.train_samples
        for point in known.points
        if point.is_usable
    }


@dataclass(frozen=True)
class Plan:
    """What is projected: points that were measured here, to devices in a network."""

    points: Sequence[Point]
    network: Network
    devices: tuple[int, ...]
    batch: int


def plan_projection(request: Request) -> Plan:
    """Read what `cepheid measure scaling` wrote. Raises UserError for what cannot be projected."""
    definition, asked = request.definition, request.arguments
    within = find_link(asked.within or "gloo")
    between = find_link(asked.between) if asked.between else within
    if not asked.faster > 0 or not 0 <= asked.overlap <= 1:
        raise UserError("--faster must be above 0, and --overlap from 0 to 1")
    source = asked.source or Path("results", f"scaling-{definition.name}-{definition.scale}")
    configuration, points = scaling.read_scaling(source)
    for key, expected in (("benchmark", definition.name), ("scale", definition.scale)):
        if (found := configuration[key]) != expected:
            raise UserError(f"--from {source}: its {key} is {found}, expected {expected}")
    refuse_sharing([str(each) for each in configuration.get("overrides", ())])
    batch = points[0].alone_batch_size if asked.batch_size is None else asked.batch_size
    network = Network(within, between, asked.devices_per_node or 8, asked.sum or "tree")
    return Plan(points, network, asked.devices, batch)


def project(request: Request, plan: Plan) -> Measured:
    """Project the measured step, and check the model with what was measured on several ranks."""
    definition, asked, points = request.definition, request.arguments, plan.points
    checks = [check for point in points if (check := check_point(point))]
    here = read_costs(points[0])
    costs = replace(
        here,
        fixed_seconds=here.fixed_seconds / asked.faster,
        sample_seconds=here.sample_seconds / asked.faster,
        update_seconds=here.update_seconds / asked.faster,
        input_samples_per_second=here.input_samples_per_second * asked.faster,
        overlap=asked.overlap,
        collectives=max(read_costs(point).collectives for point in points),
    )
    epochs = read_epochs(definition)
    interval = definition.timing.eval_every_samples / definition.train_samples
    samples = definition.train_samples, definition.evaluation_samples
    training = Training(*samples, interval, epochs or ANY_EPOCHS)
    rows = cost_model.project(costs, plan.network, training, plan.devices, plan.batch)
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
    columns = (
        Column("devices", "devices", "{:,}"),
        Column("batch", "batch_size", "{:,}"),
        Column("step, ms", lambda row: 1000 * row.step.seconds, "{:,.3f}"),
        *(Column(head, partial(_find_share, part), "{:.0%}") for head, part in PARTS.items()),
        Column("samples/s", "samples_per_second", "{:,.0f}"),
        Column("efficiency", "efficiency", "{:.2f}"),
        Column("epochs", "epochs", "{:.1f}"),
        Column(f"minutes {label}", lambda row: row.seconds / 60, "{:,.3f}"),
    )
    tables.append(Table(title, columns, rows))
    return Measured(tables=tables, notes=notes, facts=facts, found=(title, rows, label))


PARTS = {"compute": "compute", "communication": "exposed", "update": "update", "input": "waiting"}
"""The parts of a step by their heads."""


def _find_share(part: str, row: cost_model.Projection) -> float:
    share: float = getattr(row.step, part) / row.step.seconds
    return share


def _name_projection(definition: Definition, network: Network, faster: float) -> str:
    device = "the measured device" if faster == 1 else f"a device {faster:g} times as fast"
    return (
        f"{definition.name}, {definition.scale} scale, projected: {device}, "
        f"{network.devices_per_node} a node, {network.within.name} within, "
        f"{network.between.name} between nodes"
    )


def _describe_prediction(attribute: str, check: Check) -> str | None:
    """Return predicted milliseconds with their error, None where nothing was predicted."""
    predicted = getattr(check, attribute)
    if predicted is None:
        return None
    return f"{1000 * predicted:,.1f} ({predicted / check.measured_seconds - 1:+.1%})"


CHECKS = (
    Column("ranks", "ranks"),
    Column("step, ms", lambda check: 1000 * check.measured_seconds, "{:,.1f}"),
    Column("predicted", partial(_describe_prediction, "predicted_seconds")),
    Column("predicted, processors shared", partial(_describe_prediction, "shared_seconds")),
)


def draw_projection(path: Path, _: Request, measured: Measured) -> None:
    """Draw the projected minutes on the left, the parts of a step on the right."""
    title, rows, label = measured.found
    with draw_figure(path, columns=2) as (figure, (left, right)):
        devices = [row.devices for row in rows]
        left.plot(devices, [row.seconds / 60 for row in rows], "o-", color=OURS)
        left.set_xscale("log", base=2)
        left.set(yscale="log", xlabel="devices", ylabel=f"minutes {label}")
        heights = [[1000 * getattr(row.step, part) for row in rows] for part in PARTS.values()]
        right.stackplot(range(len(rows)), *heights, labels=list(PARTS))
        right.set_xticks(range(len(rows)), [f"{count:,}" for count in devices])
        right.set(xlabel="devices", ylabel="ms of a step")
        right.legend()
        figure.suptitle(title)


STUDY = Study(
    "project",
    plan_projection,
    project,
    figure=draw_projection,
    others=(published.STUDY, device.STUDY),
    description=DESCRIPTION,
    examples=EXAMPLES,
    options=(
        *options.offer_benchmark(),
        Option("--published", "predict each published time from those of other sizes", bool),
        Option("--like FAMILY", "answer for a device, from the published times of a family"),
        Option("--peak TFLOPS", "of the device with --like, dense, in the precision of training "
               "(default: that of the family)", float, least=1e-3, most=1e6),
        Option("--bandwidth GB", "of its memory, in 10^9 bytes a second (default: as --peak)",
               float, least=1e-3, most=1e6),
        Option("--watts W", "what a device draws, with its part of the node", float, least=1e-3),
        Option("--idle-watts W", "what it draws while it waits for others (default: as --watts)",
               float, least=0),
        Option("--price X", "what a device costs in an hour, in any currency", float, least=1e-6),
        Option("--from DIR", "what `cepheid measure scaling` wrote (default: "
               "results/scaling-<benchmark>-<scale>)", Path, more={"dest": "source"}),
        options.offer_numbers(
            "--devices N,…", "numbers of devices (default: 1, 2, 4, … 2,048)", "8,64,512", DEVICES,
            most=MOST_DEVICES,
        ),
        Option("--within LINK", "links in a node (default: gloo; with --like, as there)"),
        Option("--between LINK", "links between nodes (default: as within; with --like, as there)"),
        Option("--devices-per-node K", "default: 8; with --like, as there", int, least=1),
        Option("--sum", "how gradients are summed: rings in nodes and a tree or rings (nodes) "
               "between them, one ring, or rings along rows and columns of a torus "
               "(default: tree; with --like, as there)", more={"choices": SHAPES}),
        Option("--overlap X", "the share of the backward pass that hides communication, 0 to 1 "
               "(default: 0)", float, 0.0),
        Option("--faster X", "how many times as fast as the measured one a device is (default: 1)",
               float, 1.0),
        Option("--batch-size B", "samples of a device (default: as measured)", int, least=1),
        Option("--figure FILE", "draw the prediction as PNG", Path),
        Option("--output FILE", "write all numbers as JSON", Path),
    ),
)  # fmt: skip
