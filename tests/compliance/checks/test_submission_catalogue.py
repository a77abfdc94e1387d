"""A catalogue of broken submissions: one change of a compliant one each, and what it gives.

That of single logs is in ``test_catalogue.py``.
"""

import datetime
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.checks.submission import machine
from cepheid.compliance.finding import Finding
from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.read import package, powerlog
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.summary import measure_joules
from cepheid.compliance.report.formats import format_text
from cepheid.rules import definition, digests, rounds
from cepheid.rules.documents import SCHEMAS
from tests.compliance.builder import (
    CODE_DIGEST,
    IMPLEMENTATION,
    PNG,
    SYSTEM,
    Record,
    copy_quality,
    delay,
    derive_seed_of,
    find,
    line_number,
    name_task,
    power_lines,
    put,
    put_metadata,
    run_records,
    set_clocks,
    write_log,
    write_power,
    write_result,
)

pytestmark = pytest.mark.usefixtures("fast_reference")

MINI = definition.load("galaxy_shape", "mini")
DUE = datetime.date(2026, 11, 21)
ROUND = replace(rounds.load("v1.0"), due=DUE)
RECORDS = run_records(MINI)
RESULT = "results/box/galaxy_shape-mini-closed"
LOG_0, LOG_2, LOG_3 = (f"{RESULT}/result_{index}.txt" for index in (0, 2, 3))
POWER_2, REPORT = f"{RESULT}/power_2.csv", f"{RESULT}/report_1.json"
INTERRUPTED = f"{RESULT}/interrupted_0.txt"
CODE, README = "benchmarks/galaxy_shape", "benchmarks/galaxy_shape/README.md"
BOX = "systems/box.json"
WATTS = {"node0": 800.0, "node1": 790.5}
DECIDED = "../decisions.yaml"  # beside the submitter's folder
WAIVER = {
    "rule": "T12",
    "path": f"acme/{RESULT}/result_1.txt",
    "reason": "the default of another release was used by mistake",
    "who": "Jane Doe, organiser",
    "until": "2026-12-31",
}


@dataclass(frozen=True)
class Case:
    """One change of a compliant submission, the rule that it breaks, and where that is found.

    ``path`` is relative to the submitter's folder.
    """

    name: str
    code: str
    path: str
    change: Callable[[Path], object]
    line: int | None = None
    says: str = ""

    @property
    def rule(self) -> str:
        return self.code.partition(".")[0]


def find_all(root: Path) -> list[Finding]:
    """All but that there is no manifest: ``tests/tools/test_pack_submission.py`` is about that."""
    found = judge([package.read(root)], ROUND).findings
    return [finding for finding in found if finding.rule != "S4"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A compliant submission with one result, its energy and its code."""
    root = tmp_path / "submissions" / "acme"
    folder = write_result(root, MINI)
    for index in range(MINI.runs.required):
        write_power(folder, run_records(MINI, index), index, WATTS)
    return root


def test_a_compliant_submission_raises_nothing(root: Path) -> None:
    assert find_all(root) == []
    assert find_all(root.parent) == []


def test_files_beside_the_logs_that_agree_raise_nothing(root: Path) -> None:
    attach("configuration")(root)
    attach("report_1")(root)
    assert find_all(root) == []
    (root / RESULT / "pictures_1.png").write_bytes(PNG)
    quality = runlog.read(root / RESULT / "result_1.txt").quality_curve[-1].metrics
    for energy in (
        {"none": "no sensors"},  # the readings of a meter were added
        {"joules": 5.0, "mean_watts": 1.0, "sensors": ["package-0"], "not_measured": "fans"},
        {"joules": measure(root, "node1"), "sensors": ["node1"], "not_measured": "node0"},
    ):
        attach("report_1", energy=energy)(root)
        assert find_all(root) == []
    rows = [{"part": "all", **quality, "nll_error": 7.0, "low_nll": 3}, {"part": 7, "snr": "high"}]
    bins = [{"snr": n, "e_rmse": n * quality["e_rmse"], "galaxies": 900} for n in (0.5, 1.5)]
    attach("report_1", tables=[{"rows": rows}, {"rows": bins}, {"title": "nothing"}, 7])(root)
    assert find_all(root) == []


Change = Callable[[Path], object]


def write(index: int, records: list[Record]) -> Change:
    return lambda root: write_log(root / RESULT / f"result_{index}.txt", records)


def log(index: int, key: str, nth: int = 0, /, **fields: object) -> Change:
    return write(index, put(run_records(MINI, index), key, nth, **fields))


def set_aside(key: str) -> Change:
    """The log of an interrupted run that says something else under a key."""
    records = put(run_records(MINI, 1)[:30], key, value="other")
    return lambda root: write_log(root / INTERRUPTED, records)


def in_all_logs(key: str, **fields: object) -> Change:
    return lambda root: [log(n, key, **fields)(root) for n in range(MINI.runs.required)]


def copy_values(index: int, of: int, key: str, copy: Callable[[Record, Record], object]) -> Change:
    """One log with something of every record of some keys in another one."""
    records, others = run_records(MINI, index), run_records(MINI, of)
    for record, other in zip(records, others, strict=True):
        if record["key"] in key.split():
            copy(record, other)
    return write(index, records)


def measure_again(run: int, records: list[Record]) -> Change:
    return lambda root: [write(run, records)(root), write_power(root / RESULT, records, run, WATTS)]


def copy_times(index: int, of: int) -> Change:
    """One log with the times of another one, a day later."""
    records, others = run_records(MINI, index), run_records(MINI, of)
    for record, other in zip(records, others, strict=True):
        set_clocks(record, other, 86_400_000)
    return measure_again(index, records)


def copy_run(index: int, of: int) -> Change:
    """A copy under the seed of the run that it replaces, a day later."""
    own = find(run_records(MINI, index), "seed")["value"]
    records = put(run_records(MINI, of), "seed", value=own)
    delay(records, 86_400_000)
    return measure_again(index, records)


def at(key: str, nth: int = 0) -> int:
    return line_number(RECORDS, key, nth)


def file(name: str, content: bytes = b"x") -> Change:
    def change(root: Path) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    return change


def system(**fields: object) -> Change:
    return file(BOX, json.dumps({**SYSTEM, **fields}).encode())


def power(index: int, change: Callable[[list[str]], object]) -> Change:
    lines = power_lines(run_records(MINI, index), WATTS)
    change(lines)
    return file(f"{RESULT}/power_{index}.csv", "".join(f"{line}\n" for line in lines).encode())


def rows(first: int, last: int, *texts: str) -> Callable[[list[str]], object]:
    def change(lines: list[str]) -> None:
        lines[first - 1 : last] = texts

    return change


def cells(number: int, text: str) -> Callable[[list[str]], object]:
    def change(lines: list[str]) -> None:
        lines[number - 1] = f"{lines[number - 1].split(',')[0]},{text}"

    return change


def give_readings(lines: list[str]) -> None:
    """The watts of run 2 under the clock of this one."""
    others = power_lines(run_records(MINI, 2), WATTS)
    for number, other in enumerate(others[2 : len(lines)], 2):
        lines[number] = f"{lines[number].split(',', 1)[0]},{other.split(',', 1)[1]}"


def remove(*names: str) -> Change:
    def change(root: Path) -> None:
        for name in names:
            (root / name).unlink()

    return change


def remove_run(index: int) -> Change:
    return remove(f"{RESULT}/result_{index}.txt", f"{RESULT}/power_{index}.csv")


def rename(name: str, other: str) -> Change:
    return lambda root: (root / name).rename(root / other)


def sparse(name: str, size_bytes: int) -> Change:
    """A file with a hole: large, but nothing on the disk."""

    def change(root: Path) -> None:
        with (root / name).open("wb") as hole:
            hole.truncate(size_bytes)

    return change


def waivers(text: str) -> Change:
    return file(DECIDED, text.encode())


def waiver(**fields: str) -> Change:
    return waivers(yaml_of({**WAIVER, **fields}))


def yaml_of(*entries: dict[str, str]) -> str:
    """A file of waivers as a person writes it: the first entry begins on line 2."""
    lines = ["waivers:"]
    for entry in entries:
        texts = [f"{key}: {json.dumps(value)}" for key, value in entry.items()]
        lines += [f"  - {texts[0]}", *(f"    {text}" for text in texts[1:])]
    return "\n".join(lines) + "\n"


def add_task_digest(root: Path, index: int) -> object:
    """Log the digest of the code that is there."""
    own = digests.digest_code(digests.digest_files(root / CODE))
    return write(index, name_task(run_records(MINI, index), own))(root)


def system_renamed(root: Path) -> None:
    """Folder and logs say Box, the description box."""
    (root / "results" / "box").rename(root / "results" / "Box")
    for index in range(MINI.runs.required):
        records = run_records(MINI, index, system={**SYSTEM, "system": "Box"})
        folder = root / "results" / "Box" / "galaxy_shape-mini-closed"
        write_log(folder / f"result_{index}.txt", records)


def attach(name: str, **fields: object) -> Change:
    """The configuration of the result, or the report of run 1, with other fields."""

    def change(root: Path) -> None:
        content = {**(CONFIGURATION if name == "configuration" else describe_run(root)), **fields}
        (root / RESULT / f"{name}.json").write_text(json.dumps(content))

    return change


def measure(root: Path, sensor: str) -> float | None:
    """The energy of run 1 that one sensor measured."""
    power = powerlog.read(root / RESULT / "power_1.csv")
    (alone,) = (one for one in power.sensors if one.name == sensor)
    run = runlog.read(root / RESULT / "result_1.txt")
    return measure_joules(run, replace(power, sensors=(alone,)))


def describe_run(root: Path) -> dict[str, object]:
    """What a report says of run 1."""
    run = runlog.read(root / RESULT / "result_1.txt")
    used = measure_joules(run, powerlog.read(root / RESULT / "power_1.csv"))
    energy = {"joules": used, "sensors": list(WATTS), "not_measured": "nothing"}
    known = {"benchmark": MINI.name, "scale": "mini", "code_digest": CODE_DIGEST, "run": 1}
    return {**known, "seed": run.value("seed"), "energy": energy, "tables": []}


CONFIGURATION = {
    "round": "v1.0", "benchmark": MINI.name, "scale": "mini", "division": "closed",
    "definition_digest": MINI.digest, "code_digest": CODE_DIGEST, "submitter": "acme",
    "system": "box", "framework": "torch",
    "hyperparameters": {name: known.default for name, known in MINI.hyperparameters.items()},
    "execution": {"precision": "auto"}, "seeds": "derived",
}  # fmt: skip


def added(name: str, code: str, path: str, content: bytes = b"x", says: str = "") -> Case:
    """A file more: it is named, or its folder where a blank stands behind that."""
    named = path.partition(" ")[0]
    return Case(name, code, named, file(path.replace(" ", ""), content), says=says)


def metered(
    name: str, code: str, change: Callable[[list[str]], object], line: int, says: str
) -> Case:
    """Other lines in the power log of run 2."""
    return Case(name, code, POWER_2, power(2, change), line, says)


def waived(name: str, code: str, says: str, **fields: str) -> Case:
    """A waiver that is not one."""
    return Case(name, code, DECIDED, waiver(**fields), 2, says)


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nwaivers: [*c, *c]\n"
STEP, RAN = at("eval_accuracy"), at("implementation")
DERIVED = str(derive_seed_of(MINI, 2))
BOTH = "no reading of node0, node1"

CASES = [
    # T15 to T19: runs of a result
    Case("a seed used twice", "T15.repeated", LOG_3, lambda root: [
        copy_values(index, 1, "seed", lambda record, other: (
            record.update(value=7), record["metadata"].update(origin="given")))(root)
        for index in (1, 3)], at("seed"), "result_1.txt"),
    Case("a seed shopped for", "T15.not_derived", LOG_2, log(2, "seed", value=4711), at("seed"),
         DERIVED),
    Case("the seed of another run", "T15.not_derived", LOG_2,
         log(2, "seed", value=derive_seed_of(MINI, 0)), at("seed"), DERIVED),
    Case("a seed of another program", "T15.source", LOG_2,
         write(2, put_metadata(run_records(MINI, 2), "seed", lineno=8)), at("seed"),
         "another line of code"),
    Case("one run more", "T16.too_many", RESULT, measure_again(5, run_records(MINI, 5)),
         says="6 runs"),
    Case("one run fewer", "T16.too_few", RESULT, remove_run(4), says="4 of 5 runs"),
    Case("a gap in the numbers", "T16.missing", RESULT, lambda root: [
        measure_again(5, run_records(MINI, 5))(root), remove_run(2)(root)],
         says="result_2.txt is missing"),
    Case("two runs that did not converge", "T17.too_many", RESULT, lambda root: [
        write(index, run_records(MINI, index, converged=False))(root) for index in (1, 2)],
         says="2 of 5 runs"),
    Case("other software in one run", "T18.differs", LOG_2,
         log(2, "implementation", value={**IMPLEMENTATION, "ranks": 2}), RAN, "result_0.txt"),
    Case("the digest of the code in all runs but one", "T18.differs", LOG_2,
         lambda root: [add_task_digest(root, index) for index in (0, 1, 3, 4)], at("init_stop"),
         "no task_digest"),
    Case("other code in one run", "T18.differs", LOG_0, log(0, "code_digest", value="0" * 64),
         at("code_digest"), "code_digest"),
    Case("other data in one run", "T18.differs", LOG_0,
         copy_values(0, 0, "data_digest data_read", lambda record, _: record.update(
             value="0" * 64)), at("data_digest"), "data_digest"),
    Case("a learning rate for one seed", "T18.differs", LOG_2,
         log(2, "opt_base_learning_rate", value=0.0015), at("opt_base_learning_rate")),
    Case("the quality of another run", "T19.copied_quality", LOG_3,
         copy_values(3, 1, "eval_accuracy", copy_quality), STEP, "result_1.txt"),
    Case("a copy of another run, a day later", "T19.copied_quality", LOG_3, copy_run(3, 1), STEP,
         "result_1.txt"),
    Case("the log of another run behind it", "T2.second_run", LOG_0,
         write(0, [*RECORDS, *run_records(MINI, 1)]), len(RECORDS) + 1, "a second run"),
    Case("the losses of another run", "T19.copied_losses", LOG_3,
         copy_values(3, 1, "block_stop", lambda record, other: record["metadata"].update(
             train_loss=other["metadata"]["train_loss"])), at("block_stop"), "result_1.txt"),
    Case("the times of another run, a day later", "T19.copied_intervals", LOG_3, copy_times(3, 1),
         at("run_start"), "result_1.txt"),
    # T23: energy
    Case("no power log for one run", "T23.missing", RESULT, remove(POWER_2),
         says="power_2.csv is missing"),
    Case("a power log for no run", "T23.no_run", f"{RESULT}/power_9.csv", lambda root: shutil.copy(
        root / POWER_2, root / RESULT / "power_9.csv"), says="result_9.txt"),
    Case("the readings of another run", "T23.copied", POWER_2, power(1, give_readings), 3,
         "power_1.csv"),
    metered("other sensors in one run", "T23.sensors", rows(2, 2, "monotonic_ms,node0,node7"), 2,
            "sensors are not those"),
    metered("more left out in one run", "T23.sensors", rows(1, 1, "# not measured: node7"), 1,
            "node7"),
    metered("nothing said of what is not measured", "T23.form", rows(1, 1), 1, "not measured"),
    metered("a sensor twice", "T23.form", rows(2, 2, "monotonic_ms,node0,node0"), 2, "header"),
    metered("negative power", "T23.form", cells(20, "-5,6"), 20, "node0 is not a power"),
    metered("power that is no number", "T23.form", cells(20, "nan,6"), 20, "node0 is not a power"),
    metered("power in words", "T23.form", cells(20, "much,6"), 20, "'much'"),
    metered("a clock that stands still", "T23.form", lambda lines: lines.insert(20, lines[19]), 21,
            "does not advance"),
    metered("a column too few", "T23.form", cells(20, "5"), 20, "does not fit"),
    metered("a sensor that stopped early", "T23.gap", rows(60, 10_000), 59, BOTH),
    metered("a sensor that started late", "T23.gap", rows(3, 30), 3, BOTH),
    metered("three seconds without a reading", "T23.gap", rows(41, 46), 41,
            f"{BOTH} for 3.5 seconds"),
    # S1: layout
    Case("a benchmark misspelt", "S1.unknown_name", "results/box/galaxy_shap-mini-closed",
         rename(RESULT, "results/box/galaxy_shap-mini-closed"), says='mean "galaxy_shape"'),
    Case("a scale misspelt", "S1.unknown_name", "results/box/galaxy_shape-mnii-closed",
         rename(RESULT, "results/box/galaxy_shape-mnii-closed"), says='did you mean "mini"'),
    Case("a result without scale and division", "S1.result_name", "results/box/galaxy_shape",
         rename(RESULT, "results/box/galaxy_shape"), says="does not give benchmark"),
    Case("a division in another case", "S1.unknown_name", "results/box/galaxy_shape-mini-Closed",
         rename(RESULT, "results/box/galaxy_shape-mini-Closed"), says='mean "closed"'),
    Case("a system in another case", "S1.no_description", "results/Box", system_renamed,
         says='mean "box"'),
    added("a misnamed log", "S1.unexpected", f"{RESULT}/result_05.txt",
          says="not the name of a run log"),
    added("a folder with the name of a log", "S1.unexpected", f"{RESULT}/result_5.txt /log",
          says="this is a folder"),
    added("weights in the result", "S1.unexpected", f"{RESULT}/weights.pt"),
    *[added(f"left by tools: {name}", "S1.left_by_tools", name, says="remove it")
      for name in ("checkpoints /x", "leaderboard /x", f"{RESULT}/checkpoints /x",
                   f"{RESULT}/leaderboard /x")],
    Case("a run still going", "S1.unfinished", RESULT, file(f"{RESULT}/result_5.txt.partial")),
    # S1: every file has a place
    *[added(f"misplaced: {name}", "S1.misplaced", name) for name in (
        "train.py", "results.csv", "README.txt", "LICENSE.so",
        "other /results/box/x-y-z/result_0.txt",
        "submissions /acme/manifest.json", "data /images.bin", "systems/box.py",
        "systems/old /box.json", "systems/box.json.bak", "results/notes.txt",
        "results/box/result_0.txt", "results/box/sitecustomize.py", "benchmarks/shared.py",
        "benchmarks/sitecustomize.py", "benchmarks/common /fast.py",
        "benchmarks/galaxy_shap /x.py",
        f"{CODE}/inner/results/box/galaxy_shape-mini-closed/result_0.txt",
        f"{CODE}/result_0.txt", f"{CODE}/interrupted_0.txt", f"{CODE}/power_1.csv",
        f"{CODE}/manifest.json", f"{CODE}/acme/manifest.json")],
    added("a report of no run", "S1.no_run", f"{RESULT}/report_7.json", b"{}"),
    added("pictures of no run", "S1.no_run", f"{RESULT}/pictures_00.png", PNG),
    *[added(f"hidden: {name}", "S5.name", name) for name in (
        ".env", ".git /config", "systems/.box.json", "results/.box /x", "results/box/.old /x",
        f"{RESULT}/.result_9.txt", "benchmarks/.common /x.py", f"{CODE}/.fast.py",
        ".manifest.json.7.partial")],
    # S3: all code is bound
    *[added(f"unbound: {name}", "S3.unbound", f"{CODE}/{name}") for name in (
        "__pycache__ /train.cpython-311.pyc", "__pycache__ /fast.py", "train.pyc", "lib/fast.PYO",
        "lib/__pycache__ /x.txt")],
    added("byte code without a folder", "S3.unbound", f"{CODE}/__pycache__"),
    added("code of no result, for others to import", "S3.unused", "benchmarks/kfac /fast.py"),
    Case("a README that a shell runs", "S3.unbound", README,
         lambda root: (root / README).chmod(0o755)),
    # S2: system description
    Case("a number as text", "S2.value", BOX, system(nodes="1"), says="type: integer"),
    Case("an unknown status", "S2.value", BOX, system(status="Available"), says="enum"),
    Case("half an accelerator", "S2.value", BOX, system(accelerators_per_node=0.5)),
    Case("fewer nodes than none", "S2.value", BOX, system(nodes=-1), says="minimum: 1"),
    Case("a version as a number", "S2.value", BOX, system(software={"torch": 2}),
         says="software.torch"),
    Case("no processor", "S2.missing_field", BOX, file(BOX, json.dumps(
        {key: value for key, value in SYSTEM.items() if key != "processor"}).encode()),
         says="lacks processor"),
    Case("the name of another file", "S2.system", BOX, system(system="boks"),
         says="system is not the file's name"),
    *[added(f"no description: {text[:9]!r}", "S2.unreadable", BOX, text) for text in (
        b"{", b"[]", b"\xff", b"[" * 10_000, b'{"a": "' + b"x" * 2**20 + b'"}')],
    Case("accelerators without a name", "S2.value", BOX, system(accelerators_per_node=8),
         says="accelerator"),
    *[Case(f"no machine has {fields}", "S2.value", BOX, system(**fields)) for fields in (
        {"nodes": 10**30}, {"nodes": 10**7}, {"processor_cores_per_node": 20_000},
        {"memory_gib_per_node": -8}, {"memory_gib_per_node": 1e6},
        {"accelerators_per_node": 10**5, "accelerator": "A100"},
        {"accelerator_memory_gib": 10**9}, {"processor_sockets_per_node": 0},
        {"processor_threads_per_node": 10**9}, {"numa_nodes_per_node": -1})],
    *[Case(f"an empty text: {fields}", "S2.value", BOX, system(**fields)) for fields in (
        {"processor": " "}, {"framework": "-"}, {"operating_system": "\u200b"}, {"storage": "\t"},
        {"software": {"torch": ""}}, {"software": {"": "1"}})],
    *[Case(f"contradictions: {fields}", "S2.contradiction", BOX, system(**fields), 1)
      for fields in ({"processor_sockets_per_node": 4}, {"software": {"torch": "2.9.1"}})],
    *[Case(f"no peak: {fields}", "S2.value", BOX, system(**fields))
      for fields in list[dict[str, Any]]((
        *({"peak_tflops": peaks} for peaks in (
            {}, {"int8": {"measured": 1.0}}, {"fp32": 1.0}, {"fp32": {"measured": 0}},
            {"fp32": {"measured": 5e-324}},  # its share would be infinite
            {"fp32": {"guessed": 1.0}})),
        {"memory_gb_per_second": 20.0}))],
    Case("an accelerator of which there is none", "S2.value", BOX, system(accelerator="A100")),
    *[added(f"loose JSON: {text}", "S2.unreadable", BOX, json.dumps({**SYSTEM}).replace(
        "{", "{" + text, 1).encode()) for text in (
        '"nodes": 1, ', '"memory_gib_per_node": NaN, ', '"a": 1e999, ', '"a": Infinity, ',
        '"software": {"a": "1", "a": "2"}, ')],
    # T14: the log and the description say the same of the machine
    *[Case(f"another machine: {fields}", "T14.machine", LOG_0,
           in_all_logs("implementation", value={**IMPLEMENTATION, **fields}), RAN)
      for fields in (
        {"framework": "jax"}, {"execution": {"precision": "fp32"}, "precision": "bfloat16"},
        {"execution": {"threads": "1", "own": {"parts_at_once": "2"}}, "threads_per_rank": 1},
        {"device": "cuda"}, {"nodes": 2}, {"ranks": 64})],  # more of them: test_facts.py
    Case("fewer threads than ran", "T14.machine", LOG_0,
         in_all_logs("implementation", value={**IMPLEMENTATION, "threads_per_rank": 64}), RAN,
         f"ranks 1 (line {RAN}) and nodes 1 (box.json:1)"),
    Case("less memory than the weights need", "T14.machine", LOG_0,
         system(memory_gib_per_node=0.0001), at("model_parameters"),
         "memory_gib_per_node 0.0001 (box.json:1)"),
    Case("accelerators that did not compute", "T14.machine", LOG_0,
         system(accelerators_per_node=8, accelerator="A100"), RAN, "8 accel"),
    Case("nodes that did not compute", "T14.machine", LOG_0, system(nodes=512), RAN, "512"),
    Case("more than the machine can compute", "T14.above_peak", LOG_0,
         system(peak_tflops={"fp32": {"datasheet": 1e-9}}), RAN,
         "samples a second of 158,134,272 operations"),
    # S14: the files beside the logs
    *[Case(f"another configuration: {fields}", "S14.contradiction",
           f"{RESULT}/configuration.json", attach("configuration", **fields), 1)
      for fields in (
        {"benchmark": "kfac"}, {"framework": "keras"}, {"seeds": "given, from 7"},
        {"seeds": "lucky"}, {"hyperparameters": {"opt_name": True}}, {"submitter": ""})],
    *[Case(f"another report: {said}", "S14.contradiction", REPORT, attach("report_1", **said), 1)
      for said in list[dict[str, Any]]((
        {"benchmark": "kfac"}, {"seed": 4711}, {"run": 2}, {"code_digest": "0" * 64},
        *({"energy": energy} for energy in (
            {"joules": 1.0}, {"joules": 1.0, "sensors": ["node0"]},
            {"joules": 1.0, "sensors": ["node0", "node7"]}, {"joules": 1.0, "sensors": "node0"},
            {"joules": 1.0, "sensors": []}, {"joules": -5}, {"joules": "low"})),
        *({"tables": [{"rows": table}]} for table in (
            [{"e_rmse": 0.001}], [{"part": "faint", "nll": -9.0}, {"part": "bright", "nll": -10}],
            [{"e_rmse": 1.0, "e_rmse_error": 0.1}, {"e_rmse": 0.9}],
            [{"p50_ms": 7, "p99_ms": 5}], [{"min": 3.5, "max": 1}]))))],
    added("data with the name of an interrupted run", "S14.no_log", INTERRUPTED, b"weights",
          says="no run log"),
    *[Case(f"an interrupted run of another {key}", "S14.other_result", INTERRUPTED, set_aside(key),
           at(key)) for key in ("submission_org", "submission_platform", "submission_benchmark")],
    *[added(name, "S14.unreadable", f"{RESULT}/pictures_1.png", before + b"#!/bin/sh\n",
            says="not a PNG file") for name, before in (
        ("code behind the signature of a picture", PNG[:8]), ("code behind a picture", PNG),
        ("code with the name of a picture", b""))],
    Case("an energy that nobody measured", "S14.contradiction", REPORT, lambda root: [
        attach("report_1")(root), remove(*(f"{RESULT}/power_{n}.csv" for n in range(5)))(root)],
         1, "no power log"),
    *[added(f"loose JSON beside logs: {text[:20]!r}", "S14.unreadable", REPORT, text)
      for text in (b"", b"[]", b'{"seed": NaN}', b'{"seed": 1, "seed": 2}', b"{" * 10_000,
                   b'"' + b"x" * 2**20 + b'"', b'{"seed": 1e999}', b"\xff")],
    Case("a misspelt field", "S2.unknown_field", BOX, system(procesor="x"), says="procesor"),
    Case("HTML for a processor field", "S2.unknown_field", BOX, system(**{"<b>": 1})),
    Case("a text to be filled in", "S2.unfilled", BOX, system(notes="FILL IN: cooling"),
         says="notes is still to be filled in"),
    # S3, S6: code and licence
    Case("no code", "S3.no_code", CODE, remove(f"{CODE}/train.py"), says="the code that ran"),
    added("empty code", "S3.no_code", f"{CODE} /train.py", b""),
    Case("no README", "S3.no_readme", README, remove(README)),
    added("a README to be filled in", "S3.unfilled", README,
          b"# Code\n\nFILL IN: what changed\n", says="to be written"),
    added("an empty README", "S3.no_readme", README, b""),
    Case("no licence", "S6.no_licence", "LICENSE", remove("LICENSE"), says="no licence"),
    added("an empty licence", "S6.no_licence", "LICENSE", b""),
    # S5: hygiene
    Case("a link out of the folder", "S5.refused", f"{CODE}/data",
         lambda root: (root / CODE / "data").symlink_to("/etc"), says="a link"),
    Case("a link to a file in the folder", "S5.refused", f"{CODE}/run.py",
         lambda root: (root / CODE / "run.py").symlink_to("train.py")),
    Case("a pipe among logs", "S5.refused", f"{RESULT}/result_5.txt",
         lambda root: os.mkfifo(root / RESULT / "result_5.txt")),
    Case("a pipe", "S5.refused", f"{CODE}/pipe", lambda root: os.mkfifo(root / CODE / "pipe"),
         says="neither a file nor a folder"),
    Case("names that differ in case", "S5.case", f"{CODE}/train.py", file(f"{CODE}/TRAIN.py"),
         says="only in case"),
    added("a name with a line feed", "S5.name", f"{CODE}/a\nb", says="\\n"),
    added("a name that goes right to left", "S5.name", f"{CODE}/\u202egpj.py", says="\\u202e"),
    added("HTML in a name", "S5.name", f"{CODE}/<script>.py"),
    added("a name that is an option", "S5.name", f"{CODE}/-rf"),
    added("a device of Windows", "S5.name", f"{CODE}/aux.py"),
    added("a name with a backslash", "S5.name", f"{CODE}/..\\x"),
    Case("a huge file", "S5.large_file", f"{CODE}/weights.bin",
         sparse(f"{CODE}/weights.bin", 2**30), says="too large"),
    Case("a long path", "S5.long_path", f"{CODE}/{'d' * 90}/{'e' * 90}",
         lambda root: (root / CODE / ("d" * 90) / ("e" * 90)).mkdir(parents=True)),
    Case("folders in folders", "S5.refused", CODE + "/x" * 15,
         lambda root: (root / (CODE + "/x" * 15)).mkdir(parents=True), says="deeper"),
    # S9: waivers
    added("a waiver in the own folder", "S9.own", "waivers.yaml", yaml_of(WAIVER).encode()),
    Case("a decision of no kind", "S9.form", DECIDED, waivers("wishes: []\n"), 1, "wishes"),
    Case("waivers that are no list", "S9.form", DECIDED, waivers("waivers: none\n"), 1, "list"),
    Case("a waiver without a reason", "S9.form", DECIDED, waivers(
        yaml_of({key: text for key, text in WAIVER.items() if key != "reason"})), 2, "reason"),
    waived("a waiver of an unwritten reason", "S9.form",
           "reason: '-' is too short (minLength: 10)", reason="-"),
    waived("a waiver for ever", "S9.form", "until", until="forever"),
    waived("a day that is none", "S9.form", "calendar", until="2026-02-30"),
    waived("a waiver that leaves the folder", "S9.form", "acme/../umbrella",
           path="acme/../umbrella/results"),
    waived("a waiver of an absolute path", "S9.form", '"/etc"', path="/etc"),
    waived("a waiver of everything", "S9.form", "path is no", path="."),
    waived("a waiver of the clock", "S9.not_waivable", "cannot be waived", rule="T4"),
    waived("a waiver of the targets", "S9.not_waivable", "cannot be", rule="T9"),
    waived("a waiver of waivers", "S9.not_waivable", "cannot be waived", rule="S9"),
    waived("a waiver of no rule", "S9.not_waivable", "T99", rule="T99"),
    waived("a field of a waiver too many", "S9.form", "silent", silent="yes"),
    Case("a field of a waiver twice", "S9.form", DECIDED,
         waivers(yaml_of(WAIVER) + '    rule: "T4"\n'), 7, "more than once"),
    Case("a YAML bomb", "S9.form", DECIDED, waivers(BOMB), 1, "anchors"),
    Case("YAML that runs code", "S9.form", DECIDED,
         waivers("waivers: !!python/object/apply:os.system [id]\n"), 1, "tags"),
    Case("YAML nested deeply", "S9.form", DECIDED, waivers("[" * 5_000), 1, "deeply"),
    Case("YAML that is none", "S9.form", DECIDED, waivers("waivers:\n - a: b: c\n"), 2),
    added("no UTF-8 in YAML", "S9.form", DECIDED, b"waivers: \xff"),
    Case("an empty file of waivers", "S9.form", DECIDED, waivers(""), 1),
    Case("a huge file of waivers", "S9.form", DECIDED, sparse(DECIDED, 2**20)),
    Case("too many waivers", "S9.form", DECIDED, waivers(yaml_of(*[WAIVER] * 101)), 502),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_change_gives_one_finding(case: Case, root: Path) -> None:
    case.change(root)
    findings = find_all(root)
    errors = [finding for finding in findings if finding.is_error]
    if case.rule == "T14":  # of every log
        errors = errors[:1]
    assert [finding.code for finding in errors] == [case.code], format_text(findings, 5)
    (found,) = errors
    assert (found.path, found.line) == (Path(os.path.normpath(root / case.path)), case.line), found
    assert case.says in found.text()
    assert found.message
    assert found.hint, "a finding says how to fix it"
    assert format_text(findings, 5).isprintable() or "\n" in format_text(findings, 5)


def test_a_power_log_of_another_run_is_a_copy_with_a_gap(root: Path) -> None:
    shutil.copy(root / RESULT / "power_1.csv", root / RESULT / "power_2.csv")
    errors = [finding for finding in find_all(root) if finding.is_error]
    assert [finding.code for finding in errors] == ["T23.recycled", "T23.gap"]
    assert [finding.line for finding in errors] == [3, 142]
    assert "no reading of node0, node1" in errors[1].text()


def test_bounds_of_a_description_are_those_of_its_schema() -> None:
    schema = json.loads((SCHEMAS / "system.schema.json").read_text())
    for key, most in machine.COUNTS_MAX.items():
        assert schema["properties"][key]["maximum"] == most


@pytest.fixture
def broken(root: Path) -> Path:
    """The submission with another optimizer in run 1."""
    log(1, "opt_name", value="sgd")(root)
    return root


def test_a_waiver_is_shown_and_lets_the_result_stand(broken: Path) -> None:
    assert [finding.code for finding in find_all(broken) if finding.is_error] == ["T12.not_allowed"]
    waiver()(broken)
    (found,) = find_all(broken)
    assert (found.code, found.severity) == ("T12.not_allowed", "warning")
    assert found.line == at("opt_name")
    assert found.message == (
        "opt_name must be adam in the closed division (waived by Jane Doe, organiser until "
        "2026-12-31: the default of another release was used by mistake)"
    )


COVERING = [{"path": path} for path in (f"acme/{RESULT}", "acme/results/box", "acme")]


@pytest.mark.parametrize("fields", [*COVERING, {"until": DUE.isoformat()}], ids=str)
def test_a_waiver_covers_a_folder_until_its_last_day(fields: dict[str, str], broken: Path) -> None:
    waiver(**fields)(broken)
    (found,) = find_all(broken)
    assert (found.code, found.severity) == ("T12.not_allowed", "warning")


def test_it_covers_nothing_else(broken: Path) -> None:
    for fields, code, says in [
        ({"rule": "T10"}, "S9.unused", "covers no error"),
        ({"path": f"acme/{RESULT}/result_2.txt"}, "S9.unused", "covers no error"),
        ({"path": f"acme/{RESULT}/result_1"}, "S9.unused", "covers no error"),
        ({"until": "2026-11-20"}, "S9.expired", "ended on 2026-11-20"),
    ]:
        waiver(**fields)(broken)
        found = {(finding.code, finding.severity): finding for finding in find_all(broken)}
        assert set(found) == {("T12.not_allowed", "error"), (code, "warning")}
        told = found[code, "warning"]
        assert (told.path, told.line) == (broken.parent / "decisions.yaml", 2)
        assert says in told.message


def test_one_log_is_judged_with_its_waiver_alone(broken: Path) -> None:
    """Asked about one log, nobody wants to hear of the waivers of others."""
    waiver()(broken)
    for path in (broken / RESULT / "result_1.txt", broken / RESULT):
        (found,) = find_all(path)
        assert (found.code, found.severity) == ("T12.not_allowed", "warning")
    assert find_all(broken / LOG_2) == []


def test_an_open_result_needs_a_readme(tmp_path: Path) -> None:
    root = tmp_path / "submissions" / "acme"
    folder = write_result(root, MINI, division="open")
    assert find_all(root) == []
    (folder / "README.md").unlink()
    (found,) = find_all(root)
    assert (found.code, found.path) == ("S3.no_result_readme", folder / "README.md")


def test_threads_that_share_processors_are_a_warning(root: Path) -> None:
    in_all_logs("implementation", value={**IMPLEMENTATION, "threads_per_rank": 5})(root)
    found = find_all(root)
    assert {(one.code, one.severity) for one in found} == {("T14.machine", "warning")}


def test_a_reading_that_never_changes_is_a_warning(root: Path) -> None:
    def constant(lines: list[str]) -> None:
        lines[2:] = [f"{line.rsplit(',', 1)[0]},700" for line in lines[2:]]

    power(2, constant)(root)
    (found,) = find_all(root)
    assert (found.code, found.severity, found.line) == ("T23.constant", "warning", 3)
    assert "node1 reads 700 W" in found.message


def test_a_sensor_may_be_read_less_often_than_another(root: Path) -> None:
    def every_third(lines: list[str]) -> None:
        lines[3::3] = [f"{line.rsplit(',', 1)[0]}," for line in lines[3::3]]

    for index in range(MINI.runs.required):
        power(index, every_third)(root)
    assert find_all(root) == []


def test_many_bad_names_give_a_bounded_report(root: Path) -> None:
    for number in range(150):
        (root / CODE / f"a b {number}").write_text("x")
    found = [finding for finding in find_all(root) if finding.rule == "S5"]
    assert len(found) == 101
    assert "more than 100 files" in found[0].message
    assert {finding.code for finding in found} == {"S5.name", "S5.more_files"}
