"""T9 and T10: the results of evaluations, the end of a run, and its counts."""

import math
from collections.abc import Iterator

from cepheid.compliance.checks.definitions import find_division, read_batch_size
from cepheid.compliance.checks.log.relations import check_relations
from cepheid.compliance.checks.registry import Needs, Place, make_finding, rule
from cepheid.compliance.finding import Finding, format_value
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.definition import Definition
from cepheid.rules.errors import did_you_mean
from cepheid.rules.events import STATUS_ABORTED, STATUS_SUCCESS, is_integer, is_number

EPOCH_TOLERANCE = 1e-3
PARAMETERS_MAX = 10**15


@rule("T9", Needs.TIMELINE)
def check_quality(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that evaluations have all metrics and that the run ends where all targets hold (T9)."""
    incomplete = [
        finding
        for event in run.all("eval_accuracy")
        for finding in _check_metrics(run, event, definition)
    ]
    if incomplete:
        yield from incomplete
    else:
        yield from _check_ending(run, definition)


def _check_metrics(run: RunLog, event: Event, definition: Definition) -> Iterator[Finding]:
    metrics = event.metadata["metrics"]
    first = definition.quality[0].metric
    wanted = [target.metric for target in definition.quality] + list(definition.reported)
    wrong = [name for name in wanted if not is_number(metrics.get(name))]
    if wrong:
        guess = did_you_mean(wrong[0], [key for key in metrics if key not in wanted])
        yield make_finding(
            run.path,
            event.line,
            "T9.missing_metric",
            f"metadata.metrics lacks {', '.join(wrong)}{guess}",
            expected=f"a number for each of {', '.join(wanted)}",
            got=format_value(metrics),
            hint="log every metric of the definition, the reported ones too, at every evaluation",
        )
    elif event.value != metrics[first] and math.isfinite(event.value):  # else T5 reports it
        yield make_finding(
            run.path,
            event.line,
            "T9.value",
            f"the value of eval_accuracy is not {first}, the first quality metric",
            expected=format_value(metrics[first]),
            got=format_value(event.value),
            hint=f"write the same number as value and as metadata.metrics.{first}",
        )
    else:
        impossible = list(_check_bounds(run, event, definition))
        yield from impossible or check_relations(run, event, definition)


def _check_bounds(run: RunLog, event: Event, definition: Definition) -> Iterator[Finding]:
    for name, (lowest, highest) in definition.bounds.items():
        value = event.metadata["metrics"].get(name)
        if not is_number(value) or not math.isfinite(value) or lowest <= value <= highest:
            continue  # the check of metrics or T5 reports such values
        yield make_finding(
            run.path,
            event.line,
            "T9.impossible_value",
            f"{name} has a value that this metric cannot have",
            expected=_format_bounds(lowest, highest),
            got=format_value(value),
            hint=f"compute {name} as the definition's evaluation does, and log it unscaled",
        )


def _format_bounds(lowest: float, highest: float) -> str:
    if math.isfinite(lowest) and math.isfinite(highest):
        return f"from {lowest:g} to {highest:g}"
    return f"{lowest:g} or more" if math.isfinite(lowest) else f"at most {highest:g}"


def _check_ending(run: RunLog, definition: Definition) -> Iterator[Finding]:
    targets = " and ".join(map(str, definition.quality))
    evaluations = run.all("eval_accuracy")
    reached = [
        event for event in evaluations if definition.is_reached_by(event.metadata["metrics"])
    ]
    stop = run.all("run_stop")[0]
    if reached:
        going_on = [e for e in run.all("block_start") if e.line > reached[0].line]
        if going_on:
            yield make_finding(
                run.path,
                going_on[0].line,
                "T9.trained_on",
                "training continued after every target held",
                expected=f"run_stop after the evaluation on line {reached[0].line} ({targets})",
                got="another block",
                hint="stop at the first evaluation at which every target holds",
            )
        elif run.status == STATUS_ABORTED:
            yield make_finding(
                run.path,
                stop.line,
                "T9.false_abort",
                "run_stop says aborted, but every target holds",
                expected=f'"{STATUS_SUCCESS}", since {targets} on line {reached[0].line}',
                got=f'"{STATUS_ABORTED}"',
                hint="compare each metric with its target as the definition says: equal is enough",
            )
    elif run.status == STATUS_SUCCESS:
        last = evaluations[-1] if evaluations else None
        missed = [
            f"{target.metric} {format_value(last.metadata['metrics'][target.metric])}"
            for target in definition.quality
            if last and not target.holds(last.metadata["metrics"][target.metric])
        ]
        yield make_finding(
            run.path,
            stop.line,
            "T9.false_success",
            "run_stop says success, but the last evaluation misses a target",
            expected=targets,
            got=", ".join(missed) or "no evaluation",
            hint="continue training until every target holds at the same evaluation"
            if definition.kind == "train"
            else "check precision and weights: images must be as good as the definition requires",
        )


@rule("T10", Needs.TIMELINE)
def check_counts(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check set sizes, data, parameters, samples and epochs against the definition (T10)."""
    expected = {
        "train_samples": definition.train_samples,
        "eval_samples": definition.evaluation_samples,
    }
    if find_division(run, place) == "closed":
        logged = {name: run.value(name) for name in definition.hyperparameters}
        expected["model_parameters"] = definition.count_parameters(logged)
    for key, count in expected.items():
        event = run.first(key)
        if event is not None and event.value != count:
            yield make_finding(
                run.path,
                event.line,
                "T10.size",
                f"{key} differs from the definition",
                expected=f"{count:,}",
                got=format_value(event.value),
                hint="in the closed division build the definition's model; open allows another"
                if key == "model_parameters"
                else "use the whole set that prepare_data makes for this scale",
            )
    if "model_parameters" not in expected:
        yield from _check_parameters(run)
    yield from _check_data(run, definition)
    if definition.kind == "train":
        yield from _check_batches(run)
        yield from _check_epochs(run, definition)
        yield from _check_run_stop(run)


def _check_parameters(run: RunLog) -> Iterator[Finding]:
    """Check that an open model has a number of parameters that a model can have."""
    event = run.first("model_parameters")
    if event is None or not is_integer(event.value) or 0 < event.value <= PARAMETERS_MAX:
        return  # T2 reports another type
    yield make_finding(
        run.path,
        event.line,
        "T10.parameters",
        "no model has this number of parameters",
        expected=f"from 1 to {PARAMETERS_MAX:,}",
        got=format_value(event.value),
        hint="log the number of trainable parameters of the model that was trained",
    )


def _check_run_stop(run: RunLog) -> Iterator[Finding]:
    stop, blocks = run.all("run_stop")[0], run.all("block_stop")
    if stop.metadata["samples_count"] != run.samples_trained:
        yield make_finding(
            run.path,
            stop.line,
            "T10.run_stop_count",
            "samples_count of run_stop is not that of the last block_stop",
            expected=f"{run.samples_trained:,}"
            + (f", as on line {blocks[-1].line}" if blocks else ", since no block was completed"),
            got=format_value(stop.metadata["samples_count"]),
            hint="count the samples of completed blocks, also where the run failed within one",
        )


def _check_data(run: RunLog, definition: Definition) -> Iterator[Finding]:
    event = run.first("data_digest")
    if event is None or definition.data_digest in (None, event.value):
        return
    yield make_finding(
        run.path,
        event.line,
        "T10.data",
        "the data are not those of the reference",
        expected=format_value(definition.data_digest),
        got=format_value(event.value),
        hint=f"`cepheid data {definition.name} --scale {definition.scale} --verify` compares what "
        "is there; where it differs, prepare the data again with the versions of constraints.txt",
        severity="warning",
    )


def _check_batches(run: RunLog) -> Iterator[Finding]:
    batch, before = read_batch_size(run), 0
    if batch is None:
        return
    for event in run.all("block_stop"):
        samples = event.metadata["samples_count"]
        if samples % batch or samples <= before:
            yield make_finding(
                run.path,
                event.line,
                "T10.block_count",
                f"{format_value(samples)} samples cannot be the end of this block",
                expected=f"a multiple of the global batch size {batch:,} above {before:,}",
                got=format_value(samples),
                hint="count whole global batches, over all ranks, since run_start",
            )
            return
        before = samples


def _check_epochs(run: RunLog, definition: Definition) -> Iterator[Finding]:
    for event in run.all("eval_accuracy"):
        epochs = event.metadata["samples_count"] / definition.train_samples
        if not abs(event.metadata["epoch_num"] - epochs) <= EPOCH_TOLERANCE:
            yield make_finding(
                run.path,
                event.line,
                "T10.epoch_num",
                "epoch_num is not samples_count / train_samples",
                expected=f"{epochs:.4f}",
                got=format_value(event.metadata["epoch_num"]),
                hint="one epoch is train_samples samples, also when a batch spans its end",
            )
            return
