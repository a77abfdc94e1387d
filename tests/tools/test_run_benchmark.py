"""`cepheid run` as its user meets it: the command line, refusals, interruptions, going on."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="runs need the extra torch")
pytest.importorskip("galsim", reason="runs need the extra galsim")

from cepheid.rules import definition
from cepheid.rules.definition import BENCHMARKS_VARIABLE
from cepheid.rules.host import ROOT
from cepheid.tools import run_benchmark
from tests import assert_refused, tiny
from tests.compliance.asserting import Printed, assert_says
from tests.processes import Ended, Program, cepheid

EAGER = ["--scale", "mini", "--set", "compile=off", "--set", "global_batch_size=32"]
FAST = [*EAGER, "--set", "precision=fp32", "--set", "threads=1"]  # nothing to tune


def environment(*, reachable: bool = True, max_samples: int = 64) -> dict[str, str]:
    """Name the definition as it is, but for sizes and targets: a run of seconds."""
    timing = {"eval_every_samples": 32, "max_samples": max_samples}
    folder = tiny.folder_of(
        "galaxy_shape", reachable=reachable, data=tiny.SIZES, timing=timing, data_digest=None
    )
    return {BENCHMARKS_VARIABLE: str(folder), "COLUMNS": "9999"}


def cepheid_run(*arguments: object, **sizes: Any) -> Ended:
    return cepheid("run", *arguments, environment=environment(**sizes))


def events(path: Path) -> list[dict[str, object]]:
    return [json.loads(line[9:]) for line in path.read_text().splitlines() if line]


def test_runs_resumes_and_refuses_another_configuration(data_root: Path, tmp_path: Path) -> None:
    where = ["--data", data_root, "--output", tmp_path / "out"]
    first = cepheid_run("galaxy_shape", *FAST, "--runs", "1", *where)
    assert first.returncode == 0, first.stderr
    assert "all targets reached" in first.stdout
    (folder,) = (tmp_path / "out" / "results").glob("*/galaxy_shape-mini-closed")
    before = (folder / "result_0.txt").read_bytes()
    assert events(folder / "result_0.txt")[-1]["key"] == "data_read"  # the report is not in the log
    assert first.stdout.count("run 0: report:") == 1
    assert "energy" not in first.stdout
    report = json.loads((folder / "report_0.json").read_text())
    assert report["seed"] in [event["value"] for event in events(folder / "result_0.txt")]
    assert len(report["tables"]) == 3

    more = cepheid_run("galaxy_shape", *FAST, "--runs", "+1", *where)
    assert more.returncode == 0, more.stderr
    assert "preparing data" not in more.stdout
    assert (folder / "result_0.txt").read_bytes() == before
    seeds = {
        event["value"]
        for index in (0, 1)
        for event in events(folder / f"result_{index}.txt")
        if event["key"] == "seed"
    }
    assert len(seeds) == 2
    assert len(list((tmp_path / "out" / "checkpoints").glob("*/*/run_*.pt"))) == 2

    nothing = cepheid_run("galaxy_shape", *FAST, "--runs", "2", *where)
    assert nothing.returncode == 0
    assert "nothing to run" in nothing.stdout

    other = cepheid_run("galaxy_shape", *FAST, "--set", "opt_gradient_clip_norm=1", *where)
    assert other.returncode == 2
    assert_says(other.stderr, "opt_gradient_clip_norm", "choose another --output")
    assert "Traceback" not in other.stderr


def test_a_run_that_is_not_finite_says_it_has_no_pictures(data_root: Path, tmp_path: Path) -> None:
    where = ["--data", data_root, "--output", tmp_path]
    rate = ["--division", "open", "--set", "opt_base_learning_rate=1e30"]
    ended = cepheid_run("galaxy_shape", *FAST, *rate, "--runs", "1", *where)
    assert ended.returncode == 1, ended.stderr
    assert "run 0: no report, no pictures, because the" in ended.stdout
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.rglob("pictures_*"))


def test_a_trial_of_few_samples_is_fine_without_targets(data_root: Path, tmp_path: Path) -> None:
    where = ["--data", data_root, "--output", tmp_path, "--runs", "1"]
    ended = cepheid_run("galaxy_shape", *FAST, "--limit", "32", *where, reachable=False)
    assert ended.returncode == 0, ended.stderr
    assert "a run that counts needs all samples" in ended.stdout
    again = cepheid_run("galaxy_shape", *FAST, "--limit", "32", *where, reachable=False)
    assert again.returncode == 0, again.stdout
    assert "nothing to run" in again.stdout


def test_a_missed_target_is_exit_code_1_and_keeps_its_log(data_root: Path, tmp_path: Path) -> None:
    where = ["--data", data_root, "--output", tmp_path, "--runs", "1"]
    ended = cepheid_run("galaxy_shape", *EAGER, *where, reachable=False)
    assert ended.returncode == 1, ended.stderr
    (log,) = tmp_path.glob("results/*/*/result_0.txt")
    last = events(log)[-2]
    assert last["key"] == "run_stop"
    assert last["metadata"]["status"] == "aborted"  # type: ignore[index]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.promise)]
)
def test_interruption_closes_the_log_and_the_run_is_made_again(
    number: signal.Signals, data_root: Path, tmp_path: Path
) -> None:
    line = ["galaxy_shape", *FAST, "--runs", "1", "--data", data_root, "--output", tmp_path]
    sizes: dict[str, Any] = {"reachable": False, "max_samples": 6 * 32}
    process = Program("cepheid.tools.cli:console", "run", *line, environment=environment(**sizes))
    begun = partial(tmp_path.glob, "results/*/*/result_0.txt.partial")
    wait_until(lambda: any("block_stop" in log.read_text() for log in begun()), process)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert "Traceback" not in err
    assert "does not count" in out
    (log,) = tmp_path.glob("results/*/*/interrupted_result_0_0.txt")
    assert not list(tmp_path.glob("results/*/*/report_*"))
    stops = [event for event in events(log) if event["key"] == "run_stop"]
    assert len(stops) == 1
    assert number.name in str(stops[0]["metadata"])

    again = cepheid_run(*line, **sizes)
    assert again.returncode == 1, again.stderr  # it misses the target, but it counts
    assert log.with_name("result_0.txt").exists()
    assert log.exists()


def wait_until(condition: object, process: Program, seconds: float = 120) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not get that far"
        time.sleep(0.05)


def qualities(output: Path) -> list[dict[str, float]]:
    (log,) = output.glob("results/*/*/result_*.txt")
    found = [event["metadata"] for event in events(log) if event["key"] == "eval_accuracy"]
    return [metadata["metrics"] for metadata in found]  # type: ignore[index]


@pytest.mark.promise
def test_ranks_of_torchrun_leave_one_log_with_one_result(data_root: Path, tmp_path: Path) -> None:
    exact = [*FAST, "--runs", "1", "--seed", "5", "--data", data_root]
    arguments = ["galaxy_shape", *exact, "--output"]
    alone = cepheid_run(*arguments, tmp_path / "1", reachable=False)
    assert alone.returncode == 1, alone.stderr
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                "--nproc-per-node", "4", "-m", "cepheid.tools.run_benchmark", *map(str, arguments),
                str(tmp_path / "4")]  # fmt: skip
    there = {**os.environ, "PYTHONPATH": str(ROOT), **environment(reachable=False)}
    ended = subprocess.run(torchrun, env=there, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.count("run 0 of") == 1
    (log,) = (tmp_path / "4").glob("results/*/*/result_*.txt")
    implementation = next(e["value"] for e in events(log) if e["key"] == "implementation")
    assert implementation["ranks"] == 4  # type: ignore[index]
    assert ended.stdout.count("run 0: report:") == 1
    assert (log.parent / "report_0.json").is_file()
    one, four = qualities(tmp_path / "1"), qualities(tmp_path / "4")
    assert len(one) == len(four) == 2
    for expected, found in zip(one, four, strict=True):
        assert found == pytest.approx(expected, rel=1e-4)


def test_damaged_data_are_reported_before_the_run_or_end_it(tmp_path: Path) -> None:
    run = ["galaxy_shape", *FAST, "--runs", "1", "--data", tmp_path / "data"]
    arguments = [*run, "--output", tmp_path / "out"]
    prepared = cepheid_run(*run, "--output", tmp_path / "x")
    assert prepared.returncode == 0, prepared.stderr
    (labels,) = (tmp_path / "data").glob("*/labels.npy")
    content = labels.read_bytes()

    labels.write_bytes(content[:-1])
    ended = cepheid_run(*arguments)
    assert ended.returncode == 2
    assert_says(ended.stderr, "labels.npy: the file has", "prepare the dataset again")
    assert not list((tmp_path / "out").glob("results/*/*/*.txt*"))

    labels.write_bytes(content.replace(b"<f4", b"<i4"))  # the same size: seen when it is opened
    ended = cepheid_run(*arguments)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "labels.npy: holds" in ended.stderr
    (log,) = (tmp_path / "out").glob("results/*/*/*.txt")
    assert log.name == "interrupted_result_0_0.txt"
    assert "labels.npy: holds" in str(events(log)[-1]["metadata"])

    labels.write_bytes(content)
    ended = cepheid_run(*arguments)
    assert ended.returncode == 0, ended.stderr


def test_the_list_of_a_benchmark_shows_all_that_can_be_set(capsys: Printed) -> None:
    for name in definition.names():
        for scale in definition.scales(name):
            assert run_benchmark.main([name, "--scale", scale, "--list"]) == 0
            lines, chosen = capsys.readouterr().out.splitlines(), definition.load(name, scale)
            named = {line.partition(" ")[0] for line in lines}
            known = (chosen.hyperparameters, chosen.variants, chosen.execution, chosen.presets)
            assert {key for each in known for key in each} <= named
    assert run_benchmark.main(["kfac", "--scale", "mini", "--list"]) == 0
    rows = {row.split()[0]: row.split()[1:] for row in capsys.readouterr().out.splitlines() if row}
    assert rows["global_batch_size"][:2] == ["64", "from"]
    assert rows["kfac_fisher"][:3] == ["empirical", "the", "default"]
    assert rows["kfac_fisher"][3:5] == ["also", "sampled,"]
    assert rows["network"] == ["resnet50", "resnet18,", "resnet34,", "resnet101"]
    assert_refused('no benchmark "kfak"', run_benchmark.main, ["kfak", "--list"])


def test_a_run_that_generates_goes_on(tmp_path: Path) -> None:
    """On data of its own: a command refuses those that another test is preparing."""
    images = {"counts": [1, 3, 40], "repetitions": [200, 15, 12], "warm_up_images": 4}
    sizes = {"data": tiny.SIZES, "generation": images, "data_digest": None}
    small = tiny.folder_of("galaxy_generation", reachable=True, **sizes)
    exact = [word for value in ("compile=off", "precision=fp32", "threads=1")
             for word in ("--set", value)]  # fmt: skip

    def generate(runs: str) -> str:
        ended = cepheid(
            "run", "galaxy_generation", "--scale", "mini", *exact, "--runs", runs,
            "--data", tmp_path / "data", "--output", tmp_path,
            environment={BENCHMARKS_VARIABLE: str(small), "COLUMNS": "9999"},
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "Warning" not in ended.stderr
        return ended.stdout

    said = generate("1")
    assert [line for line in said.splitlines() if "3 images:" in line and "(p50; p99" in line]
    assert "all targets reached after 725 images" in said
    (here,) = (tmp_path / "results").glob("*/galaxy_generation-mini-closed")
    kept = {path.name for path in here.iterdir()}
    assert {"report_0.json", "pictures_0.png", "result_0.txt"} <= kept
    report = (here / "report_0.json").read_text()
    assert_says(report, "2.26 billion galaxies of CosmoDC2", "17.7 days")
    assert not (tmp_path / "checkpoints").exists(), "the weights are those that it began with"
    before = (here / "result_0.txt").read_bytes()
    generate("2")
    assert (here / "result_0.txt").read_bytes() == before
    times = [
        next(event["value"] for event in log if event["key"] == "generation_times")
        for log in (events(here / f"result_{index}.txt") for index in (0, 1))
    ]
    assert times[0] != times[1]
    assert json.loads((here / "report_1.json").read_text())["tables"][0]["rows"][2]["images"] == 40
