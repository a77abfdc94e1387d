"""T9 and T10: the results of evaluations, the end of a run, and its counts."""

import math
from collections.abc import Iterator

from cepheid.compliance.checks.log.plausible import check_plausibility
from cepheid.compliance.checks.registry import Needs, Place, find_division, read_batch_size, rule
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.definition import Definition
from cepheid.rules.errors import did_you_mean
from cepheid.rules.events import STATUS_ABORTED, STATUS_SUCCESS, is_integer, is_number
from cepheid.rules.evidence import find_end


def check_relations(run: RunLog, event: Event, definition: Definition) -> Iterator[Finding]:
    """Check one evaluation that has all metrics, each of them finite."""
    metrics = event.metadata["metrics"]
    samples = definition.evaluation_samples
    if definition.generation:  # as many images of each kind are compared
        samples = min(samples, definition.generation.counts[-1])
    for name, nearest in definition.relations.find_wrong_counts(metrics, samples):
        yield breach(
            run, event, "T9.impossible_count", name=name, samples=samples, nearest=nearest,
            value=format_value(metrics[name]),
        )  # fmt: skip
    for name, expected, because in definition.relations.find_contradictions(metrics, samples):
        yield breach(
            run, event, "T9.contradiction", name=name, because=because, expected=expected,
            value=format_value(metrics[name]),
        )  # fmt: skip


EPOCH_TOLERANCE = 1e-3
PARAMETERS_MAX = 10**15


@rule("T9", Needs.TIMELINE)
def check_quality(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that evaluations have all metrics and that the run ends where all targets hold (T9)."""
    evaluations = run.all("eval_accuracy")
    incomplete = [each for one in evaluations for each in _check_metrics(run, one, definition)]
    if incomplete:
        yield from incomplete
    else:
        yield from _check_ending(run, definition)
        yield from check_plausibility(run, definition, place)


def _check_metrics(run: RunLog, event: Event, definition: Definition) -> Iterator[Finding]:
    metrics = event.metadata["metrics"]
    first = definition.quality[0].metric
    wanted = [target.metric for target in definition.quality] + list(definition.reported)
    wrong = [name for name in wanted if not is_number(metrics.get(name))]
    if wrong:
        guess = did_you_mean(wrong[0], [key for key in metrics if key not in wanted])
        yield breach(
            run, event, "T9.missing_metric", missing=", ".join(wrong), guess=guess,
            wanted=", ".join(wanted), metrics=format_value(metrics),
        )  # fmt: skip
    elif event.value != metrics[first] and math.isfinite(event.value):  # else T5 reports it
        yield breach(run, event, "T9.value", metric=first, expected=format_value(metrics[first]))
    else:
        impossible = list(_check_bounds(run, event, definition))
        yield from impossible or check_relations(run, event, definition)


def _check_bounds(run: RunLog, event: Event, definition: Definition) -> Iterator[Finding]:
    for name, (lowest, highest) in definition.bounds.items():
        value = event.metadata["metrics"].get(name)
        if not is_number(value) or not math.isfinite(value) or lowest <= value <= highest:
            continue  # the check of metrics or T5 reports such values
        yield breach(
            run, event, "T9.impossible_value", name=name, bounds=_format_bounds(lowest, highest),
            value=format_value(value),
        )  # fmt: skip


def _format_bounds(lowest: float, highest: float) -> str:
    if math.isfinite(lowest) and math.isfinite(highest):
        return f"from {lowest:g} to {highest:g}"
    return f"{lowest:g} or more" if math.isfinite(lowest) else f"at most {highest:g}"


def _check_ending(run: RunLog, definition: Definition) -> Iterator[Finding]:
    targets = " and ".join(map(str, definition.quality))
    evaluations = run.all("eval_accuracy")
    end = find_end((event.metadata["metrics"] for event in evaluations), definition)
    stop, wanted = run.all("run_stop")[0], definition.timing.evaluations_to_hold
    case = "twice" if wanted > 1 else ""
    if end is not None:
        line = evaluations[end].line
        going_on = [e for e in run.all("block_start") if e.line > line]
        if going_on:
            yield breach(run, going_on[0], "T9.trained_on", case=case, line=line, targets=targets)
        elif run.status == STATUS_ABORTED:
            yield breach(run, stop, "T9.false_abort", case=case, targets=targets, line=line)
    elif run.status == STATUS_SUCCESS:
        missed = [
            f"{target.metric} {format_value(event.metadata['metrics'][target.metric])}"
            for event in evaluations[-wanted:]
            for target in definition.quality
            if not target.holds(event.metadata["metrics"][target.metric])
        ]
        shown = ", ".join(missed) or ("one evaluation" if evaluations else "no evaluation")
        yield breach(
            run, stop, "T9.false_success", targets=targets, missed=shown,
            case=("twice" if wanted > 1 else "") if definition.kind == "train" else "generated",
        )  # fmt: skip


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
            yield breach(
                run, event, "T10.size", case="model" if key == "model_parameters" else "",
                count=count,
            )  # fmt: skip
    if "model_parameters" not in expected:
        yield from _check_parameters(run)
    data = run.first("data_digest")
    if data is not None and definition.data_digest not in (None, data.value):
        yield breach(
            run, data, "T10.data", expected=format_value(definition.data_digest),
            name=definition.name, scale=definition.scale,
        )  # fmt: skip
    if definition.kind == "train":
        yield from _check_batches(run)
        yield from _check_epochs(run, definition)
        yield from _check_run_stop(run)


def _check_parameters(run: RunLog) -> Iterator[Finding]:
    """Check that an open model has a number of parameters that a model can have."""
    event = run.first("model_parameters")
    if event is None or not is_integer(event.value) or 0 < event.value <= PARAMETERS_MAX:
        return  # T2 reports another type
    yield breach(run, event, "T10.parameters", most=PARAMETERS_MAX)


def _check_run_stop(run: RunLog) -> Iterator[Finding]:
    stop, blocks = run.all("run_stop")[0], run.all("block_stop")
    logged, trained = stop.metadata["samples_count"], run.samples_trained
    if logged != trained:
        why = f", as on line {blocks[-1].line}" if blocks else ", since no block was completed"
        yield breach(
            run, stop, "T10.run_stop_count", samples_trained=trained, because=why,
            samples_count=format_value(logged),
        )  # fmt: skip


def _check_batches(run: RunLog) -> Iterator[Finding]:
    batch, before = read_batch_size(run), 0
    if batch is None:
        return
    for event in run.all("block_stop"):
        samples = event.metadata["samples_count"]
        if samples % batch or samples <= before:
            yield breach(
                run, event, "T10.block_count", samples=format_value(samples), batch=batch,
                before=before,
            )  # fmt: skip
            return
        before = samples


def _check_epochs(run: RunLog, definition: Definition) -> Iterator[Finding]:
    logged = run.value("train_samples")
    own = logged if is_integer(logged) and logged > 0 else definition.train_samples
    for event in run.all("eval_accuracy"):
        epochs = event.metadata["samples_count"] / definition.train_samples
        of_own = event.metadata["samples_count"] / own  # another set is T10.size alone
        known = (epochs, of_own)
        if not any(abs(event.metadata["epoch_num"] - each) <= EPOCH_TOLERANCE for each in known):
            yield breach(
                run, event, "T10.epoch_num", epochs=epochs,
                epoch_num=format_value(event.metadata["epoch_num"]),
            )  # fmt: skip
            return
