"""What honest submitters do must pass: every result of ours, and whatever befalls good runs.

One table of variations of a compliant result, and one of ways to write the same log, which is tried
on all recorded results. Nothing but notes may be found.
"""

import json
import random
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from cepheid.rules import definition
from cepheid.rules.host import ROOT
from tests.compliance.builder import (
    PNG,
    SYSTEM,
    Record,
    delay,
    line_number,
    power_lines,
    put_metadata,
    run_records,
    stretch,
    stretch_all,
    write_log,
    write_power,
    write_result,
)
from tests.compliance.judging import find_all

pytestmark = pytest.mark.usefixtures("fast_reference")

MINI = definition.load("galaxy_shape", "mini")
RUNS = range(MINI.runs.required)
Change = Callable[[list[Record], int], object]
Text = Callable[[str], str]


def find_faults(path: Path) -> list[str]:
    return [found.text() for found in find_all(path) if found.severity != "note"]


def rewrite(line: str, **how: object) -> str:
    start, _, record = line.partition(" ")
    return f"{start} {json.dumps(json.loads(record), **how)}"  # type: ignore[arg-type]


def each_line(change: Text) -> Text:
    return lambda log: "".join(change(line) + "\n" for line in log.splitlines())


def change_record(change: Callable[[Record], Record]) -> Text:
    def changed(line: str) -> str:
        start, _, record = line.partition(" ")
        return f"{start} {json.dumps(change(json.loads(record)))}"

    return each_line(changed)


FORMS: Mapping[str, Text] = {
    "as it is": str,
    "CRLF": lambda log: log.replace("\n", "\r\n"),
    "no line feed at its end": lambda log: log.rstrip("\n"),
    "blank lines": lambda log: log.replace("\n", "\n\n"),
    "a blank line at its start": lambda log: "\n" + log,
    "other output": each_line(lambda line: f"epoch 1 [####  ] 50% loss: nan\n{line}"),
    "progress bars": each_line(lambda line: f"step 1\rstep 2\r\n{line}"),
    "tracebacks of others": each_line(lambda line: f'  File "x.py", line 3, in f\n{line}'),
    "letters of the world": each_line(lambda line: f"été 訓練 🚀\n{line}"),
    "sorted keys": each_line(partial(rewrite, sort_keys=True)),
    "no spaces": each_line(partial(rewrite, separators=(",", ":"))),
    "letters as they are": each_line(partial(rewrite, ensure_ascii=False)),
    "from other lines of code": change_record(lambda record: {
        **record, "metadata": {
            **record["metadata"], "file": "C:\\run_stop\\träin.py", "lineno": 3}}),
    "keys in another order": change_record(
        lambda record: dict(reversed(record.items()))),
    "output of another framework and locale": each_line(lambda line: (
        f"INFO:tensorflow:loss = 0,693, étape = 1 200 (:::)\nwandb: Run data saved\n{line}")),
    "spaces behind": each_line(lambda line: f"{line}  \t"),
}  # fmt: skip


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of all recorded results, without the manifests that name their bytes."""
    folder = tmp_path_factory.mktemp("ours") / "results_of_all"
    shutil.copytree(ROOT / "submissions", folder)
    for manifest in folder.glob("*/manifest.json"):
        manifest.unlink()
    return folder


@pytest.mark.parametrize(
    ("name", "has_all"),
    [
        ("as it is", True),
        *((name, False) for name in FORMS if name != "as it is"),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in FORMS),
    ],
)
def test_every_recorded_result_passes_in_every_form(
    name: str, has_all: bool, ours: Path, tmp_path: Path
) -> None:
    """All results as they are, and one of each benchmark in every other form; at night all."""
    shutil.copytree(ours, tmp_path / "all")
    folders = sorted((tmp_path / "all").glob("*/results/*/*"))
    of_benchmarks = {folder.name.partition("-")[0]: folder for folder in folders}
    for folder in folders:
        if not has_all and folder not in of_benchmarks.values():
            shutil.rmtree(folder)
    for log in (tmp_path / "all").glob("*/results/*/*/*_*.txt"):
        log.write_bytes(FORMS[name](log.read_text(encoding="utf-8")).encode())
    assert find_faults(tmp_path / "all") == []


def of_run(number: int, change: Callable[[list[Record]], object]) -> Change:
    return lambda records, index: change(records) if index == number else None


def of_all(*changes: Callable[[list[Record]], object]) -> Change:
    return lambda records, index: [change(records) for change in changes]


def slew(share: float) -> Callable[[list[Record]], None]:
    """Let the wall clock be corrected while the run goes on, as NTP does."""

    def change(records: list[Record]) -> None:
        first = records[0]["metadata"]["monotonic_ms"]
        for record in records:
            record["time_ms"] += int(share * (record["metadata"]["monotonic_ms"] - first))

    return change


def check_point(records: list[Record]) -> None:
    for number, record in enumerate(records):
        if record["key"] in ("eval_start", "block_start", "run_stop"):
            delay(records[number:], 3_000.0)


EVENTS: Mapping[str, Change] = {
    "nothing": of_all(),
    "a busy machine: one block": of_run(2, stretch("block_start", 5.0, 2)),
    "a busy machine: every second block": of_run(1, lambda records: [
        stretch("block_start", 2.0, nth)(records) for nth in (1, 3)]),
    "a busy machine: one run": of_run(3, stretch_all("block_start", 3.0)),
    "a busy machine: an evaluation": of_run(0, stretch("eval_start", 8.0, 1)),
    "a busy machine: all of it": of_all(
        stretch_all("block_start", 2.5), stretch_all("eval_start", 2.0)),
    "the first block compiles": of_all(stretch("block_start", 8.0, 0)),
    "the first evaluation compiles": of_run(1, stretch("eval_start", 30.0, 0)),
    "a minute of barrier before the clock": of_run(2, lambda records: delay(
        records[line_number(records, "run_start") - 1 :], 60_000.0)),
    "three seconds of a checkpoint after each block": of_all(check_point),
    "a clock that jumped before a run": of_run(4, lambda records: delay(records, 0, 20_000)),
    "a slewed clock, slow": of_all(slew(-5e-4)),
    "a slewed clock, fast": of_all(slew(5e-4)),
    "a slewed clock in one run": of_run(4, slew(2e-4)),
    "the clock is set between two runs": lambda records, index: (
        delay(records, 20_000, 0) if index > 2 else None),
    "a restart of the machine": lambda records, index: (
        delay(records, 0, 60_000 - records[0]["metadata"]["monotonic_ms"]) if index == 4 else None),
    "a day between two runs": lambda records, index: delay(records, 86_400_000.0 * index),
    "a laptop that slept between two runs": lambda records, index: (
        delay(records, 28_800_000, 0) if index > 2 else None),
    "more metadata than is asked for": lambda records, index: [
        record["metadata"].update(rank=0, host="nœud", tags=[1, None]) for record in records],
    "runs made in another order": lambda records, index: delay(records, 1e8 - 2e7 * index),
    "each run after another restart": lambda records, index: delay(
        records, 0, 90_000 - records[0]["metadata"]["monotonic_ms"] + 1_000 * index),
    "a clock in whole milliseconds": of_all(lambda records: [
        record["metadata"].update(monotonic_ms=float(round(record["metadata"]["monotonic_ms"])))
        for record in records]),
    "a longer initialisation": of_all(lambda records: delay(
        records[line_number(records, "init_stop") - 1 :], 600_000.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", EVENTS)
def test_what_befalls_good_runs_is_no_fault(name: str, tmp_path: Path) -> None:
    folder = write_result(tmp_path / "out", MINI)
    for index in RUNS:
        records = run_records(MINI, index, blocks=5)
        EVENTS[name](records, index)
        write_log(folder / f"result_{index}.txt", records)
    assert find_faults(tmp_path / "out") == []


def measure(watts: Mapping[str, float], **how: float) -> Callable[[Path], None]:
    """Let a meter be read at its own pace, with its own places."""

    def change(folder: Path) -> None:
        for index in RUNS:
            path = write_power(folder, run_records(MINI, index), index, watts, **how)
            last = path.read_text().splitlines()[-1].split(",")
            after_ms = float(last[0]) + how.get("every_ms", 500.0)
            path.write_text(path.read_text() + ",".join([str(after_ms), *last[1:]]) + "\n")

    return change


def read(
    watt: Callable[[random.Random, int], float], every_ms: float = 500.0
) -> Callable[[Path], None]:
    """Let a meter show what a function of chance and of the number of the reading says."""

    def change(folder: Path) -> None:
        for index in RUNS:
            chance = random.Random(index)
            lines = power_lines(run_records(MINI, index), {"node0": 300.0}, every_ms=every_ms)
            rows = [f"{row.split(',')[0]},{watt(chance, n)}" for n, row in enumerate(lines[2:])]
            (folder / f"power_{index}.csv").write_text("\n".join([*lines[:2], *rows]) + "\n")

    return change


def hold(folder: Path) -> None:
    """Read a meter five times as often as it measures."""
    measure({"node0": 812.0}, every_ms=100.0)(folder)
    for path in folder.glob("power_*.csv"):
        lines = path.read_text().splitlines()
        held = [f"{row.split(',')[0]},{lines[2 + n // 5 * 5].split(',')[1]}"
                for n, row in enumerate(lines[2:])]  # fmt: skip
        path.write_text("\n".join([*lines[:2], *held]) + "\n")


def attach(folder: Path) -> None:
    (folder / "pictures_0.png").write_bytes(PNG)
    (folder / "report_0.json").write_text(json.dumps({"run": 0, "system": SYSTEM["system"]}))


BESIDE: Mapping[str, Callable[[Path], object]] = {
    "a meter, twice a second": measure({"node0": 812.0}),
    "a meter, once a second": measure({"node0": 812.0}, every_ms=1_000.0),
    "a meter that is a little late": measure({"node0": 812.0}, every_ms=1_080.0),
    "a meter, ten times a second": measure({"node0": 812.0}, every_ms=100.0),
    "a laptop": measure({"package-0": 9.0, "dram-0": 1.2}),
    "eight sensors": measure({f"package-{n}": 65.0 + n for n in range(8)}),
    "a meter with one decimal": read(lambda chance, n: round(812 * chance.uniform(0.99, 1.01), 1)),
    "a meter that measures less often than it is read": hold,
    "a meter in whole watts": read(lambda chance, n: float(round(chance.gauss(300, 4)))),
    "accelerators at their limit of power": read(
        lambda chance, n: 350.0 + chance.choice((-1, 0, 1))),
    "a meter that shows nothing for a while": read(
        lambda chance, n: 0.0 if n < 3 else chance.gauss(300, 3)),
    "one run that missed": lambda folder: write_log(folder / "result_2.txt", put_metadata(
        run_records(MINI, 2, blocks=1000, converged=False), "run_stop", reason="out of budget")),
    "pictures and reports": attach,
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_what_lies_beside_good_logs_is_no_fault(name: str, tmp_path: Path) -> None:
    BESIDE[name](write_result(tmp_path / "out", MINI))
    assert find_faults(tmp_path / "out") == []
