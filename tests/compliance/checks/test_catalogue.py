"""A catalogue of broken logs: one change of a compliant log each, and one finding for it."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.finding import Finding
from cepheid.compliance.read.log import runlog
from cepheid.rules import definition, rounds
from tests.compliance.builder import (
    IMPLEMENTATION,
    Record,
    copy_quality,
    delay,
    edit,
    find,
    line_number,
    line_of,
    put_metadata,
    run_records,
    set_clocks,
)
from tests.compliance.judging import place_of

ROUND = rounds.load("v1.0")
MINI = definition.load("galaxy_shape", "mini")
PLACE, OPEN = place_of(MINI), place_of(MINI, "open")
RECORDS = run_records(MINI)


@dataclass(frozen=True)
class Case:
    """One change of a compliant log, the code of the finding, and the line that must be named."""

    name: str
    code: str
    line: int | None
    lines: list[str]
    place: Place = PLACE
    says: str = ""
    severity: str = "error"

    @property
    def rule(self) -> str:
        return self.code.partition(".")[0]


def check(lines: list[str], path: Path, place: Place = PLACE) -> list[Finding]:
    path.write_bytes("".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass"))
    return check_log(runlog.read(path), place, ROUND)


def text(records: list[Record]) -> list[str]:
    return [line_of(record) for record in records]


def put(key: str, nth: int = 0, /, **fields: Any) -> list[str]:
    return text(edit(RECORDS, key, lambda record: record.update(fields), nth))


def meta(key: str, nth: int = 0, /, **fields: Any) -> list[str]:
    return text(put_metadata(RECORDS, key, nth, **fields))


def drop(key: str, nth: int = 0) -> list[str]:
    lines = text(RECORDS)
    del lines[at(key, nth) - 1]
    return lines


def repeat(key: str, nth: int = 0) -> list[str]:
    lines = text(RECORDS)
    return [*lines[: at(key, nth)], *lines[at(key, nth) - 1 :]]


def move(key: str, before: str, nth: int = 0, before_nth: int = 0) -> list[str]:
    """The log with the content of one record moved; the clocks stay in order."""
    records: list[Record] = json.loads(json.dumps(RECORDS))
    record = records.pop(at(key, nth) - 1)
    keys = [number for number, r in enumerate(records) if r["key"] == before]
    records.insert(keys[before_nth], record)
    for moved_record, original in zip(records, RECORDS, strict=True):
        set_clocks(moved_record, original)
    return text(records)


def later(
    key: str, milliseconds: int, *, wall: bool = True, monotonic: bool = True, nth: int = 0
) -> list[str]:
    records: list[Record] = json.loads(json.dumps(RECORDS))
    delay(records[at(key, nth) - 1 :], milliseconds * wall, milliseconds * monotonic)
    return text(records)


def stamp(key: str, milliseconds: int) -> list[str]:
    return text(edit(RECORDS, key, lambda record: delay([record], milliseconds)))


def line(number: int, change: Callable[[str], str]) -> list[str]:
    lines = text(RECORDS)
    lines[number - 1] = change(lines[number - 1])
    return lines


def at(key: str, nth: int = 0) -> int:
    return line_number(RECORDS, key, nth)


def samples(nth: int) -> int:
    return int(RECORDS[at("block_stop", nth) - 1]["metadata"]["samples_count"])


def shift_counts(block: int, samples_count: int) -> list[str]:
    """The log with another end of one block, in all records that name it."""
    records: list[Record] = json.loads(json.dumps(RECORDS))
    before = samples(block)
    for record in records:
        if record["metadata"].get("samples_count") == before:
            record["metadata"]["samples_count"] = samples_count
            if record["key"] == "eval_accuracy":
                record["metadata"]["epoch_num"] = samples_count / MINI.train_samples
    return text(records)


def train_on_half_a_set() -> list[str]:
    """Epochs are those of its own number of samples, as `--limit` logs them."""
    records: list[Record] = json.loads(json.dumps(RECORDS))
    for record in records:
        if record["key"] == "train_samples":
            record["value"] //= 2
        if "epoch_num" in record["metadata"]:
            record["metadata"]["epoch_num"] *= 2
    return text(records)


def past_budget() -> list[str]:
    """A run that trains one block more than the budget allows."""
    log = run_records(MINI, blocks=sum(1 for _ in MINI.schedule(64)), converged=False)
    extra = json.loads(json.dumps(log[-6:-1]))
    for record in extra:
        metadata = record["metadata"]
        start = record["key"] == "block_start"
        metadata["samples_count"] = metadata["samples_count"] + (
            log[-2]["metadata"]["samples_count"] - metadata["samples_count"] if start else 64
        )
        if "block_num" in metadata:
            metadata["block_num"] += 1
        if "epoch_num" in metadata:
            metadata["epoch_num"] = metadata["samples_count"] / MINI.train_samples
    delay(extra, 30_000)
    stop = log[-1]
    delay([stop], 60_000)
    stop["metadata"]["samples_count"] += 64
    return text([*log[:-1], *extra, stop])


def metric(name: str, value: float, nth: int = 1) -> list[str]:
    """The log with another value of one metric in one evaluation, the second if not said."""

    def change(record: Record) -> None:
        record["metadata"]["metrics"][name] = value
        if name == MINI.quality[0].metric:
            record["value"] = value

    return text(edit(RECORDS, "eval_accuracy", change, nth))


def no_time(milliseconds: int) -> list[str]:
    """The log with all of the timed part at once; run_stop comes some milliseconds after it."""
    records: list[Record] = json.loads(json.dumps(RECORDS))
    start = records[at("run_start") - 1]
    for record in records[at("run_start") :]:
        set_clocks(record, start)
    records[STOP - 1]["time_ms"] += milliseconds
    return text(records)


def init_aborted() -> list[str]:
    head = RECORDS[: at("data_digest")]
    return text(
        [*head, {**head[-1], "key": "init_aborted", "value": "the dataset is not prepared"}]
    )


def pause(block: int, milliseconds: float) -> list[str]:
    """Both clocks stand still for a part of one block."""
    records: list[Record] = json.loads(json.dumps(LONG))
    delay(records[line_number(LONG, "block_stop", block) - 1 :], -milliseconds)
    return text(records)


LONG = run_records(MINI, blocks=8)
TIME = RECORDS[at("seed") - 1]["time_ms"]

ALONE = Place("v1.0")
BIG = 3008  # whole batches of it end where those of the default do
BATCH = int(MINI.hyperparameters["global_batch_size"].default)
STOP = at("run_stop")
STOPPED = RECORDS[STOP - 1]
MEASURED: Record = {
    **STOPPED, "key": "plain_update_ms", "value": 40.0, "event_type": "POINT_IN_TIME",
}  # fmt: skip
ABORTED = run_records(MINI, converged=False)
ABORTED_STOP = line_number(ABORTED, "run_stop")


def in_open(lines: list[str]) -> list[str]:
    return [entry.replace('"value": "closed"', '"value": "open"') for entry in lines]


def logged(
    name: str, code: str, key: str, value: object, says: str = "", place: Place = PLACE
) -> Case:
    return Case(name, code, at(key), put(key, value=value), place, says)


def aborted(name: str, code: str, line: int, key: str, nth: int = 0, /, **metadata: object) -> Case:
    return Case(name, code, line, text(put_metadata(ABORTED, key, nth, **metadata)))


def insert(after: int, record: Record, **fields: object) -> list[str]:
    return text([*RECORDS[:after], {**record, **fields}, *RECORDS[after:]])


def of_metrics(change: Callable[[dict[str, float]], object]) -> list[str]:
    return text(edit(RECORDS, "eval_accuracy", lambda r: change(r["metadata"]["metrics"]), 1))


SEED, NAME, RATE, HOW = map(at, ("seed", "opt_name", "opt_base_learning_rate", "implementation"))
DATA, INIT_STOP, RUN_START = map(at, ("data_digest", "init_stop", "run_start"))
BLOCK, EVALUATION = at("block_stop", 1), at("eval_accuracy", 1)  # the second ones

CASES = [
    # T1: form
    Case("two records on one line", "T1.place", 5, [
        *text(RECORDS[:4]), "".join(text(RECORDS[4:6])), *text(RECORDS[6:])]),
    Case("a prefix", "T1.around", 9, line(9, lambda s: "[1,0]<stdout>" + s),
         says="before the marker"),
    Case("a blank before the marker", "T1.around", 9, line(9, lambda s: " " + s)),
    Case("no blank after the marker", "T1.place", 9, line(9, lambda s: s.replace("LOG {", "LOG{"))),
    Case("text after the record", "T1.place", 9, line(9, lambda s: s + " done"), says="after"),
    Case("not JSON", "T1.json", 9, line(9, lambda s: s.replace(",", ";")), says="not JSON"),
    Case("cut JSON", "T1.json", 30, line(30, lambda s: s[:-20])),
    Case("an array", "T1.json", 9, line(9, lambda s: ":::MLLOG [1, 2]"), says="object"),
    Case("a field too many", "T1.schema", SEED, put("seed", rank=3), says="rank"),
    Case("a field too few", "T1.schema", SEED,
         line(SEED, lambda s: s.replace('"namespace": "", ', "")), says="namespace"),
    Case("a field twice", "T1.fields", SEED,
         line(SEED, lambda s: s.replace('"value":', '"value": 0, "value":')),
         says="more than once"),
    Case("time as text", "T1.fields", SEED, put("seed", time_ms=str(TIME)), says="time_ms"),
    Case("time as a boolean", "T1.fields", SEED, put("seed", time_ms=True), says="time_ms"),
    Case("time with a fraction", "T1.schema", SEED, put("seed", time_ms=float(TIME))),
    Case("time NaN", "T1.fields", SEED, put("seed", time_ms=float("nan"))),
    Case("namespace of another type", "T1.schema", SEED, put("seed", namespace=None)),
    Case("unknown event type", "T1.schema", SEED, put("seed", event_type="POINT"),
         says="event_type"),
    Case("metadata is no object", "T1.fields", at("model_parameters"), line(
        at("model_parameters"), lambda s: s[: s.index('"metadata"')] + '"metadata": [] }')),
    Case("no lineno", "T1.schema", SEED, meta("seed", lineno=None), says="lineno"),
    Case("no key", "T1.fields", SEED, put("seed", key=7), says="key"),
    Case("nested deeply", "T1.json", HOW,
         line(HOW, lambda s: s.replace('"torch"', "[" * 500 + "]" * 500))),
    Case("lone surrogate", "T1.text", 1, ["caf\udce9 compiling", *text(RECORDS)], says="UTF-8"),
    Case("NUL bytes", "T1.text", 3, [*text(RECORDS[:2]), "\0\0\0", *text(RECORDS[2:])], says="NUL"),
    Case("no records at all", "T1.no_record", None, ["Epoch 1 of 3", "done"], says="no record"),
    Case("a line of 2 MiB", "T1.text", 9, [*text(RECORDS[:8]), "x" * 2**21, *text(RECORDS[8:])],
         says="longer than 1 MiB"),
    logged("a record of 2 MiB", "T1.text", "seed", "7" * 2**21, "longer than 1 MiB"),
    Case("a bomb of brackets", "T1.json", SEED,
         line(SEED, lambda s: ":::MLLOG " + "[[]," * 30_000), says="values"),
    Case("glued: two logs in one file", "T2.second_run", len(RECORDS) + 1,
         text([*RECORDS, *run_records(MINI, 1)]), says="a second run begins here"),
    # T2: vocabulary
    *[Case(name, "T2.unknown_key", at(key), put(key, key=written), says=says)
      for name, key, written, says in (
        ("a key with Cyrillic letters", "seed", "s\u0435\u0435d", 'did you mean "seed"'),
        ("a hyperparameter with a zero-width blank", "opt_name", "opt_name\u200b",
         "opt_name\\u200b"),
        ("a key in another case", "seed", "Seed", 'did you mean "seed"'),
        ("a misspelt key", "seed", "sed", 'did you mean "seed"'),
        ("a misspelt hyperparameter", "opt_name", "opt_nmae", 'did you mean "opt_name"'))],
    Case("a hyperparameter borrowed from open", "T2.unknown_key", NAME + 1,
         insert(NAME, RECORDS[NAME - 1], key="opt_momentum", value=0.9), says="opt_momentum"),
    Case("a target of its own", "T2.unknown_key", RUN_START,
         insert(RUN_START - 1, RECORDS[INIT_STOP - 1], key="quality_target", value=0.2,
                event_type="POINT_IN_TIME"), says="quality_target"),
    Case("an invented key", "T2.unknown_key", SEED + 1,
         insert(SEED, RECORDS[SEED - 1], key="gpu_clock"), says="gpu_clock"),
    logged("division in another case", "T2.value", "submission_division", "Closed",
           '"closed" or "open"'),
    logged("a path for a division", "T2.value", "submission_division", "../../tmp/closed"),
    logged("unknown division", "T2.value", "submission_division", "clsoed"),
    logged("seed as text", "T2.value", "seed", "42", "wrong value"),
    logged("seed as a boolean", "T2.value", "seed", True),
    logged("implementation as text", "T2.value", "implementation", "x"),
    *[logged(f"a submitter called {name!r}", "T2.value", "submission_org", name,
             "submission_org has a wrong value", ALONE)
      for name in ("", " ", "\t", "\u200b", "--")],
    *[Case(name, "T2.metadata", STOP, meta("run_stop", status=status), says=says)
      for name, status, says in (
        ("status in another case", "SUCCESS", "status"), ("unknown status", "done", "status"),
        ("HTML for a status", "<b>success</b>", ""))],
    Case("seed without origin", "T2.metadata", SEED, meta("seed", origin=None), says="origin"),
    Case("unknown origin", "T2.metadata", SEED, meta("seed", origin="lucky"), says="origin"),
    Case("no loss", "T2.metadata", BLOCK, meta("block_stop", 1, train_loss=None)),
    Case("metrics as a list", "T2.metadata", at("eval_accuracy"),
         meta("eval_accuracy", metrics=[1])),
    Case("no code digest", "T2.missing", INIT_STOP - 1, drop("code_digest"), says="code_digest"),
    Case("no submitter", "T2.missing", at("init_start") - 1, drop("submission_org")),
    Case("two data digests", "T2.repeated", DATA + 1, repeat("data_digest"), says="2 times"),
    Case("wrong event type", "T2.event_type", RUN_START,
         put("run_start", event_type="POINT_IN_TIME"), says="event_type"),
    Case("initialisation aborted", "T2.init_aborted", DATA + 1, init_aborted(),
         says="the dataset is not prepared"),
    Case("a hyperparameter twice", "T2.repeated", NAME + 1, repeat("opt_name"), says="2 times"),
    Case("open: a hyperparameter twice", "T2.repeated", NAME + 1, in_open(repeat("opt_name")),
         OPEN, says="2 times"),
    Case("a hyperparameter as an interval", "T2.event_type", NAME,
         put("opt_name", event_type="INTERVAL_START"), says="expected POINT_IN_TIME"),
    Case("open: a hyperparameter as an interval", "T2.event_type", NAME,
         in_open(put("opt_name", event_type="INTERVAL_END")), OPEN, says="event_type"),
    *[logged(f"implementation without {name}", "T2.implementation", "implementation",
             {key: value for key, value in IMPLEMENTATION.items() if key != name}, name)
      for name in IMPLEMENTATION],
    logged("ranks as text", "T2.implementation", "implementation",
           {**IMPLEMENTATION, "ranks": "1"}, "ranks (integer)"),
    *[logged(f"a blank {name} of the implementation", "T2.implementation", "implementation",
             {**IMPLEMENTATION, name: " "}, f"{name} (string)")
      for name in ("framework", "device", "precision")],
    # T3: order
    Case("cache cleared late", "T3.outside_phase", at("init_start"),
         move("init_start", "cache_clear"), says="outside its phase"),
    Case("a setting after the clock started", "T3.outside_phase", RUN_START,
         move("model_parameters", "block_start"), says="outside its phase"),
    Case("clock started before initialisation ended", "T3.phase_order", INIT_STOP,
         move("run_start", "init_stop")),
    Case("evaluation without a result", "T3.out_of_turn", EVALUATION, drop("eval_accuracy", 1)),
    Case("block without an end", "T3.out_of_turn", BLOCK, drop("block_stop", 1)),
    Case("block without a start", "T3.out_of_turn", at("block_start", 1), drop("block_start", 1)),
    Case("evaluation not closed", "T3.open_interval", STOP - 1, drop("eval_stop", 2), says="open"),
    Case("data touched early", "T3.outside_phase", RUN_START, move("block_start", "run_start"),
         says="block_start stands outside its phase"),
    Case("run_stop before the last evaluation", "T3.open_interval", at("eval_start", 2),
         move("run_stop", "eval_start", before_nth=2), says="run_stop comes while"),
    Case("run_stop before run_start", "T3.outside_phase", RUN_START, move("run_stop", "run_start"),
         says="stands outside its phase"),
    Case("an evaluation before its block ends", "T3.out_of_turn", BLOCK,
         move("eval_start", "block_stop", 1, 1), says="out of turn"),
    Case("two results", "T3.out_of_turn", EVALUATION + 1, repeat("eval_accuracy", 1)),
    Case("something after run_stop", "T3.after_run_stop", STOP + 1,
         insert(STOP, RECORDS[STOP - 2], time_ms=STOPPED["time_ms"], metadata={
             **RECORDS[STOP - 2]["metadata"],
             "monotonic_ms": STOPPED["metadata"]["monotonic_ms"]}), says="follows run_stop"),
    Case("measured before the clock stops", "T3.outside_phase", STOP, insert(STOP - 1, MEASURED),
         says="plain_update_ms stands outside its phase"),
    Case("run_stop of two nodes", "T2.repeated", STOP + 1, repeat("run_stop"), says="2 times"),
    Case("measured twice", "T2.repeated", STOP + 2,
         text([*RECORDS[:STOP], MEASURED, MEASURED, *RECORDS[STOP:]]), says="2 times"),
    Case("measured in words", "T2.value", STOP + 1, insert(STOP, MEASURED, value="fast")),
    Case("a run after what was measured", "T3.after_run_stop", STOP + 2,
         text([*RECORDS[:STOP], MEASURED, RECORDS[STOP - 2] | {
             name: STOPPED[name] for name in ("time_ms", "metadata")}, *RECORDS[STOP:]]),
         says="follows run_stop"),
    # T4: clock
    Case("wall clock steps back", "T4.step_back", at("block_start", 1), put(
        "block_start", 1, time_ms=RECORDS[at("block_start", 1) - 2]["time_ms"] - 5), says="back"),
    Case("monotonic clock steps back", "T4.step_back", at("block_start", 1),
         meta("block_start", 1, monotonic_ms=1.0), says="monotonic_ms steps back"),
    Case("wall clock was set forward", "T4.clocks_apart", at("eval_start"),
         later("eval_start", 150, monotonic=False), says="150 ms"),
    Case("no monotonic clock", "T4.no_monotonic_ms", at("eval_start"),
         meta("eval_start", monotonic_ms=None)),
    Case("monotonic clock as text", "T4.no_monotonic_ms", at("eval_start"),
         meta("eval_start", monotonic_ms="7")),
    Case("run_start stamped later", "T4.step_back", at("block_start"), stamp("run_start", 5_000),
         says="back"),
    Case("run_stop stamped earlier", "T4.step_back", STOP, stamp("run_stop", -5_000), says="back"),
    Case("wall clock set back within a block", "T4.clocks_apart", BLOCK,
         later("block_stop", -9_000, monotonic=False, nth=1), says="disagree"),
    Case("monotonic clock of another machine", "T4.clocks_apart", at("eval_start", 1),
         later("eval_start", 3_600_000, wall=False, nth=1), says="disagree"),
    Case("a block in no time", "T4.no_time", BLOCK, text(edit(
        RECORDS, "block_stop", lambda r: set_clocks(r, RECORDS[BLOCK - 2]), 1)), says="no time"),
    Case("a clock paused within a block", "T4.fast_blocks", line_number(LONG, "block_stop", 4),
         pause(4, 15_000), says="times as fast", severity="warning"),
    Case("a long time that no event explains", "T4.gap", at("block_start", 2),
         later("block_start", 25_000, nth=2), says="that no event explains", severity="warning"),
    # T5: finite values
    Case("NaN quality", "T5.not_finite", EVALUATION, put("eval_accuracy", 1, value=math.nan),
         says="value of"),
    Case("infinite loss", "T5.not_finite", at("block_stop"),
         meta("block_stop", train_loss=math.inf), says="metadata.train_loss"),
    Case("a number beyond all floats", "T5.not_finite", HOW,
         line(HOW, lambda s: s.replace('"ranks": 1', '"ranks": 1, "nodes": 1e999')),
         says="value.nodes"),
    Case("infinite quality", "T5.not_finite", at("eval_accuracy", 2),
         put("eval_accuracy", 2, value=-math.inf)),
    Case("NaN in a metric", "T5.not_finite", EVALUATION,
         of_metrics(lambda m: m.update(nll=math.nan)), says="metadata.metrics.nll"),
    # T6: before the clock
    logged("cache not cleared", "T6.caches", "cache_clear", False),
    Case("long initialisation", "T6.too_long", INIT_STOP, later(
        "init_stop", int(MINI.timing.init_minutes_max * 60_000)), says="too long"),
    # T7: timed region
    Case("no run_stop", "T7.no_run_stop", STOP - 1, text(RECORDS[: STOP - 1]),
         says="without run_stop"),
    Case("a killed run", "T7.no_run_stop", BLOCK, text(RECORDS[:BLOCK]), says="without run_stop"),
    Case("a run that took no time", "T7.no_time", STOP, no_time(0), says="took no time"),
    # T8: cadence
    Case("a late evaluation", "T8.late", BLOCK, shift_counts(1, samples(1) + 2 * BATCH),
         says="late"),
    Case("an early evaluation", "T8.early", BLOCK, shift_counts(1, samples(1) - 2 * BATCH),
         says="early"),
    Case("an evaluation skipped", "T8.late", BLOCK, text(
        [*RECORDS[: BLOCK - 1], *RECORDS[at("block_start", 2) :]]), says="late"),
    Case("batch size misreported", "T10.block_count", at("block_stop"),
         put("global_batch_size", value=BATCH + 1), says="a multiple of the global batch size"),
    Case("batch size misreported, counts that fit", "T8.late", BLOCK,
         put("global_batch_size", value=BATCH // 2), says="late"),
    Case("a block counted wrongly", "T8.block_count", at("block_start", 1),
         meta("block_start", 1, block_num=5)),
    Case("a block that starts elsewhere", "T8.block_count", at("block_start", 1),
         meta("block_start", 1, samples_count=samples(0) + BATCH)),
    Case("an evaluation of other samples", "T8.evaluation_count", at("eval_start", 1),
         meta("eval_start", 1, samples_count=samples(0))),
    aborted("an evaluation in an aborted run of other samples", "T8.evaluation_count",
            ABORTED_STOP - 1, "eval_stop", 2, samples_count=samples(1)),
    # T9: quality
    Case("a missing metric", "T9.missing_metric", EVALUATION, of_metrics(lambda m: m.pop("nll")),
         says="nll"),
    Case("a missing reported metric", "T9.missing_metric", EVALUATION,
         of_metrics(lambda m: m.pop("coverage_68"))),
    Case("the value of another metric", "T9.value", EVALUATION, put("eval_accuracy", 1, value=0.5),
         says="first quality metric"),
    *[Case(name, code, EVALUATION, metric(key, value), says=says)
      for name, code, key, value, says in (
        ("a negative error", "T9.impossible_value", "e_rmse", -1.0,
         "a value that this metric cannot have"),
        ("an error beyond the largest", "T9.impossible_value", "e_rmse", 2.5, "from 0 to 2"),
        ("a share above one", "T9.impossible_value", "coverage_68", 7, "got 7"),
        ("a share of no number of samples", "T9.impossible_count", "coverage_68", 0.51026,
         "no share of 2,000 samples"),
        ("more within the smaller region", "T9.contradiction", "coverage_68", 0.9,
         "coverage_95 is 0.52"))],
    Case("success without the targets", "T9.false_success", STOP, text([
        *run_records(MINI, converged=False)[:-1], *RECORDS[STOP - 1 :]]), says="misses a target"),
    Case("a target lowered", "T9.false_success", STOP,
         metric("e_rmse", 1.01 * MINI.quality[0].target, 2), says="misses a target"),
    Case("aborted with the targets", "T9.false_abort", STOP,
         meta("run_stop", status="aborted", reason="bad luck"), says="every target holds"),
    Case("trained on", "T9.trained_on", at("block_start", 2), text(edit(  # a third block
        RECORDS, "eval_accuracy", lambda r: copy_quality(r, find(RECORDS, "eval_accuracy", 2)), 1)),
         says="training continued"),
    # T10: counts
    logged("other training set", "T10.size", "train_samples", 7),
    Case("half of the training set", "T10.size", at("train_samples"), train_on_half_a_set()),
    logged("other evaluation set", "T10.size", "eval_samples", 7),
    logged("other model", "T10.size", "model_parameters", 7),
    Case("no whole batches", "T10.block_count", BLOCK, shift_counts(1, samples(1) + 1)),
    Case("samples do not grow", "T10.block_count", BLOCK,
         meta("block_stop", 1, samples_count=samples(0))),
    Case("wrong epochs", "T10.epoch_num", EVALUATION, meta("eval_accuracy", 1, epoch_num=9.9)),
    Case("run_stop counts otherwise", "T10.run_stop_count", STOP,
         meta("run_stop", samples_count=samples(1)), says=f"as on line {at('block_stop', 2)}"),
    aborted("an aborted run that counts more", "T10.run_stop_count", ABORTED_STOP, "run_stop",
            samples_count=samples(2) + BATCH),
    Case("a run that failed at once and counts", "T10.run_stop_count", RUN_START + 1,
         text(put_metadata([*ABORTED[:RUN_START], ABORTED[-1]], "run_stop", samples_count=BATCH)),
         says="expected 0"),
    # T11: budget
    Case("aborted without a reason", "T11.no_reason", ABORTED_STOP, text(edit(
        ABORTED, "run_stop", lambda r: r["metadata"].pop("reason"))), says="does not say why"),
    aborted("aborted for a blank reason", "T11.no_reason", ABORTED_STOP, "run_stop", reason=" "),
    aborted("aborted for a number", "T11.no_reason", ABORTED_STOP, "run_stop", reason=9),
    Case("past the budget", "T11.past_budget", len(past_budget()) - 5, past_budget(),
         says="past its budget"),
    # T12: closed division
    logged("another optimizer", "T12.not_allowed", "opt_name", "sgd", "must be adam"),
    logged("a learning rate beyond the range", "T12.not_allowed", "opt_base_learning_rate", 100.0,
           "at most"),
    logged("a learning rate as text", "T12.not_allowed", "opt_base_learning_rate", "0.1", "type"),
    Case("a hyperparameter is missing", "T12.missing", INIT_STOP - 1, drop("opt_adam_beta_1")),
    logged("a batch size beyond the range", "T12.not_allowed", "global_batch_size", BIG,
           "at most 3000"),
    logged("a fixed value almost right", "T12.not_allowed", "opt_adam_beta_2", 0.9990001,
           "must be 0.999"),
    logged("a hyperparameter as a list", "T12.not_allowed", "opt_name", ["adam"]),
    # T13: open division
    *[Case(f"open: {count} parameters", "T10.parameters", at("model_parameters"),
           in_open(put("model_parameters", value=count)), OPEN) for count in (0, -1, 10**16)],
    Case("open: a wrong type", "T13.type", NAME, in_open(put("opt_name", value=3)), OPEN),
    Case("open: no batch size", "T13.batch_size", INIT_STOP - 1,
         in_open(drop("global_batch_size")), OPEN),
    # T14: identity
    logged("unknown benchmark", "T14.benchmark", "submission_benchmark", "galaxy_shap",
           'did you mean "galaxy_shape"', ALONE),
    logged("unknown scale", "T14.scale", "submission_scale", "mnii", 'did you mean "mini"', ALONE),
    logged("scale of another folder", "T14.mismatch", "submission_scale", "full"),
    logged("another round", "T14.round", "submission_round", "v0.9"),
    logged("another submitter", "T14.mismatch", "submission_org", "Acme", "system description"),
    logged("another system", "T14.mismatch", "submission_platform", "Box", "folder"),
    logged("HTML for a system", "T14.mismatch", "submission_platform",
           "<script>alert(1)</script>", "folder"),
    logged("a system with Cyrillic letters", "T14.mismatch", "submission_platform", "b\u043ex",
           "folder"),
    logged("benchmark in another case", "T14.benchmark", "submission_benchmark", "Galaxy_Shape",
           'did you mean "galaxy_shape"'),
    logged("another division", "T14.mismatch", "submission_division", "open"),
    logged("another definition", "T14.definition", "definition_digest", "0" * 64,
           "another version"),
    # T15, T17 for a log by itself; the result's own catalogue is in test_result.py
    logged("a seed that is not the derived one", "T15.not_derived", "seed", 1, place=ALONE),
    Case("aborted, by itself", "T17.not_converged", STOP, text(ABORTED), ALONE,
         says="out of memory"),
    # T27: the data that were read
    Case("no proof of the data", "T27.missing", STOP, drop("data_read"), says="does not prove"),
    logged("a digest of other bytes", "T27.other_data", "data_read", "0" * 64,
           "did not read the data"),
    logged("bytes that could not be read", "T27.other_data", "data_read",
           "not digested: Input/output error", "Input/output"),
    logged("a digest that is none", "T27.other_data", "data_read", "none"),
    Case("digested before the clock stopped", "T3.outside_phase", STOP,
         move("data_read", "run_stop"), says="data_read stands outside its phase"),
    Case("digested twice", "T2.repeated", STOP + 2, repeat("data_read"), says="2 times"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_change_gives_one_finding(case: Case, tmp_path: Path) -> None:
    findings = check(case.lines, tmp_path / "result_0.txt", case.place)
    if case.severity == "error":
        findings = [finding for finding in findings if finding.is_error]
    assert [one.code for one in findings] == [case.code], findings
    (finding,) = findings
    assert finding.severity == case.severity
    assert finding.line == case.line or case.line is None, finding
    assert case.says in finding.text()
    assert finding.message
    assert finding.hint, "a finding says how to fix it"


ALLOWED = {
    "a run that failed at once may take no time": [*ABORTED[:RUN_START], {
        **ABORTED[-1], "time_ms": ABORTED[RUN_START - 1]["time_ms"], "metadata": {
            **ABORTED[-1]["metadata"], **ABORTED[RUN_START - 1]["metadata"], "samples_count": 0}}],
    "a spent budget is reason enough": edit(
        run_records(MINI, blocks=1000, converged=False), "run_stop",
        lambda record: record["metadata"].pop("reason")),
    "a run that missed its targets needs no proof of its data": [
        record for record in ABORTED if record["key"] != "data_read"],
}  # fmt: skip


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_allowed_raises_nothing(name: str, tmp_path: Path) -> None:
    assert check(text(ALLOWED[name]), tmp_path / "result_0.txt") == []


def test_a_run_that_stopped_before_it_started(tmp_path: Path) -> None:
    found = check(no_time(-1), tmp_path / "result_0.txt")
    assert {(one.code, one.line) for one in found} == {("T4.step_back", STOP), ("T7.no_time", STOP)}


def test_other_data_are_a_warning(tmp_path: Path) -> None:
    """Data made with other versions of a library differ in a few last digits: no breach."""
    both = edit(RECORDS, "data_digest", lambda record: record.update(value="0" * 64))
    lines = text(edit(both, "data_read", lambda record: record.update(value="0" * 64)))
    (found,) = check(lines, tmp_path / "result_0.txt")
    assert (found.code, found.severity, found.line) == ("T10.data", "warning", at("data_digest"))
    assert (found.expected, found.got) == (f'"{MINI.data_digest}"', f'"{"0" * 64}"')
    assert "`cepheid data galaxy_shape --scale mini --verify`" in found.hint


@pytest.mark.parametrize("seed", range(20))
def test_an_honest_noisy_log_raises_nothing(seed: int, tmp_path: Path) -> None:
    """A slow first block, a machine that gets busy or idle, checkpoints between blocks."""
    noise = random.Random(seed)
    records: list[Record] = json.loads(json.dumps(LONG))
    delay_ms, turn = 0, noise.randrange(2, 6)
    busy_before, busy_after = noise.choice([(1, 3), (3, 1), (1, 1)])
    block = 0
    for record in records:
        if record["key"] == "block_stop":
            block += 1
            slow = busy_before if block < turn else busy_after
            delay_ms += int(20_000 * (slow - 1) + 20_000 * noise.random())
            delay_ms += 60_000 if block == 1 else 0
        elif record["key"] == "block_start" and block:
            delay_ms += noise.randrange(8_000)
        delay([record], delay_ms)
    assert check(text(records), tmp_path / "result_0.txt") == []


def test_a_file_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    """One line of 1 GB, as a hole in a sparse file."""
    path = tmp_path / "result_0.txt"
    path.write_text("\n".join(text(RECORDS)))
    with path.open("r+b") as file:
        file.truncate(2**30)
    (found,) = check_log(runlog.read(path), PLACE, ROUND)
    assert (found.code, found.line) == ("T1.file", None)
    assert "larger than 256 MiB" in found.message
    with path.open("r+b") as file:
        file.truncate(200 * 2**20)
    (found,) = check_log(runlog.read(path), PLACE, ROUND)
    assert (found.code, found.line) == ("T1.text", len(RECORDS))
