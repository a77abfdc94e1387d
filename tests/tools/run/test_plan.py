"""`cepheid run --dry-run`, and that each run of a result gets a process of its own."""

import json
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs need the extra torch")
pytest.importorskip("galsim", reason="runs need the extra galsim")

from astropy.io import fits

from cepheid.reference.data.galaxies import population
from cepheid.reference.run.config import configure
from cepheid.rules import definition
from cepheid.rules.host import ROOT
from cepheid.tools.run.plan import _find_places
from tests import tiny
from tests.compliance.asserting import Patch, assert_says
from tests.processes import cepheid
from tests.tools import scripted
from tests.tools.test_mishaps import logs, run
from tests.tools.test_run_benchmark import FAST, cepheid_run

PLAN = ["galaxy_shape", *FAST, "--dry-run", "--submitter", "acme"]


def test_the_plan_writes_nothing_and_says_all(tmp_path: Path) -> None:
    planned = cepheid_run(*PLAN, "--data", tmp_path / "data", "--output", tmp_path / "out")
    assert planned.returncode == 0, planned.stderr
    assert "runs:    0 of 5 are present; missing: 0, 1, 2, 3, 4" in planned.stdout
    assert "not prepared yet" in planned.stdout
    assert "less than a minute to prepare at " in planned.stdout
    assert "samples/s, as the first ones were drawn just now" in planned.stdout
    assert "the first run shows how long" in planned.stdout
    assert "27 MB of weights" in planned.stdout
    assert "refused" not in planned.stdout
    assert list(tmp_path.iterdir()) == []


def test_everything_that_the_closed_division_refuses_is_told(tmp_path: Path) -> None:
    asked = ["--set", "opt_name=sgd", "--set", "global_batch_size=2", "--output", tmp_path]
    refused = cepheid_run(*PLAN, *asked)
    assert refused.returncode == 1, refused.stderr
    told = [line for line in refused.stdout.splitlines() if line.startswith("refused:")]
    assert len(told) == 2
    assert "opt_name=sgd: in the closed division it must be adam (rule T12)" in told[1]

    of_open = cepheid_run(*PLAN, *asked, "--division", "open")
    assert of_open.returncode == 2
    assert "needs code of your own" in of_open.stderr
    no_division = cepheid_run(*PLAN, "--division", "close", "--output", tmp_path)
    assert 'division is "close"' in no_division.stderr


def test_a_description_of_other_devices_is_refused(tmp_path: Path) -> None:
    described = json.loads((ROOT / "submissions/cepheid/systems/2x-amd-epyc-zen4.json").read_text())
    described |= {"accelerators_per_node": 8, "accelerator": "NVIDIA H100", "system": "box"}
    (tmp_path / "box.json").write_text(json.dumps(described))
    line = ["--system", tmp_path / "box.json", "--output", tmp_path / "out"]
    said = "--system describes 8 x NVIDIA H100 in a node, but this run computes on cpu"
    planned = cepheid_run(*PLAN, *line)
    assert planned.returncode == 1
    assert f"refused: {said}" in planned.stdout
    assert "refused" not in cepheid_run(*PLAN, *line, "--ranks", "8").stdout
    run_here = cepheid_run(*(each for each in PLAN if each != "--dry-run"), *line)
    assert run_here.returncode == 2
    assert said in run_here.stderr


def test_each_run_has_a_process_of_its_own(tmp_path: Path, monkeypatch: Patch) -> None:
    """Also after a run that missed its targets, which the exit code remembers."""
    tiny.use(tiny.folder_of("galaxy_shape", timing=scripted.TIMING), monkeypatch)
    (ended,) = run(tmp_path / "out", "--runs", "2", mishap="evaluate 0 nan")
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.count(scripted.BEGUN) == 2
    assert logs(tmp_path / "out") == ["result_0.txt", "result_1.txt"]
    assert "energy" not in ended.stdout
    assert "1 more to run: about " in ended.stdout
    (more,) = run(tmp_path / "out", "--runs", "+1")
    assert more.returncode == 0, more.stderr
    assert more.stdout.count(scripted.BEGUN) == 1
    monkeypatch.undo()
    planned = plan_of("galaxy_shape", tmp_path / "out", code=1)
    assert_says(planned, "refused: ", "3 of 5 are present; missing: 3, 4", "as the runs so far")


def plan_of(benchmark: str, output: Path, code: int = 0) -> str:
    planned = cepheid("run", benchmark, "--scale", "mini", "--dry-run", "--output", output)
    assert planned.returncode == code, planned.stderr
    return planned.stdout


def test_the_plan_of_a_benchmark_that_generates(tmp_path: Path) -> None:
    planned = plan_of("galaxy_generation", tmp_path / "out")
    assert "time:    per run 32,000 images; " in planned
    assert "weights" not in planned


def test_other_weights_are_told_before_any_preparation(tmp_path: Path, monkeypatch: Patch) -> None:
    other = tiny.folder_of("galaxy_generation", model={"weights_digest": "0" * 64})
    tiny.use(other, monkeypatch)
    line = ["galaxy_generation", "--scale", "mini", "--data", tmp_path / "data"]
    planned = cepheid("run", *line, "--dry-run", "--output", tmp_path / "out", "--ranks", "4")
    assert planned.returncode == 1
    assert "mini.safetensors: its SHA-256 is" in planned.stdout
    assert "each 1,250 of the 5,000 images" in planned.stdout
    refused = cepheid("run", *line, "--output", tmp_path / "out")
    assert refused.returncode == 2
    assert "(rule T25)" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_a_plan_names_a_catalogue_that_is_missing_and_how_to_prepare_one(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("CEPHEID_COSMOS", str(tmp_path / "none.fits"))
    line = ["galaxy_shape", "--scale", "mini", "--dry-run", "--set", "catalogue=cosmos"]
    planned = cepheid("run", *line, "--division", "open", "--output", tmp_path / "out")
    assert planned.returncode == 1
    assert planned.stdout.count("refused: ") == planned.stdout.count("none.fits: cannot be") == 1
    for name in ("none.fits", "none_fits.fits", "none_selection.fits"):
        columns = [fits.Column(column, "D", array=[1.0]) for column in population.NEEDED_COLUMNS]
        fits.BinTableHDU.from_columns(columns).writeto(tmp_path / name)
    planned = cepheid("run", *line, "--division", "open", "--output", tmp_path / "out")
    assert planned.returncode == 0, planned.stdout
    prepare = "`cepheid data galaxy_shape --scale mini --set catalogue=cosmos` prepares it"
    assert prepare in planned.stdout
    closed = cepheid("run", *line, "--output", tmp_path / "out")
    assert "refused: catalogue=cosmos: the closed division has parametric only" in closed.stdout


def test_a_plan_for_many_ranks_needs_none_of_them(tmp_path: Path) -> None:
    line = ["resnet50", "--scale", "mini", "--dry-run", "--output", tmp_path, "--ranks", "32"]
    planned = cepheid("run", *line, "--ranks-per-node", "4")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    said = "ranks:   32 on 8 nodes, each 1 of the 32 samples of a batch; --system is missing"
    assert said in planned.stdout
    uneven = cepheid("run", *line, "--set", "model_bn_span=24")
    assert uneven.returncode == 1
    assert "refused: model_bn_span 24: 32 ranks with 1 samples each cannot" in uneven.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_plan_foresees_what_the_run_refuses(tmp_path: Path, monkeypatch: Patch) -> None:
    """Another value, and other code, than the runs that are there (T18)."""
    tiny.use(tiny.folder_of("galaxy_shape", timing=scripted.TIMING), monkeypatch)
    (ended,) = run(tmp_path / "out", "--runs", "1")
    assert ended.returncode == 0, ended.stderr
    kept = next((tmp_path / "out").glob("results/*/*/configuration.json"))
    content = json.loads(kept.read_text())
    assert "reference/run/train.py" in content["code"]
    content["code"] |= {"reference/run/train.py": "0" * 12, "benchmarks/gone.py": "1" * 12}
    content["code_digest"] = "2" * 64
    kept.write_text(json.dumps(content))
    before = kept.read_bytes()
    for option in (["--dry-run"], []):
        (ended,) = run(tmp_path / "out", "--runs", "2", *option)
        said = ended.stdout if option else ended.stderr
        assert ended.returncode == (1 if option else 2)
        assert "(changed: reference/run/train.py; gone: benchmarks/gone.py)" in said
        assert "Runs of one result share everything but the seed (rule T18)" in said
    assert kept.read_bytes() == before


def test_a_plan_names_data_that_nobody_can_prepare(tmp_path: Path) -> None:
    line = ["--output", tmp_path / "out", "--data", tmp_path, "--dry-run"]
    planned = cepheid("run", "resnet50", "--scale", "full", *line)
    assert planned.returncode == 1, planned.stderr
    refused = re.findall(r"^refused: .*$", planned.stdout, re.MULTILINE)
    assert "ILSVRC2012: there is no such folder" in refused[-1]
    assert all("153 GB are needed for the data" in each for each in refused[:-1])
    assert "not prepared yet (about 155 + 153 GB, " in planned.stdout
    assert re.search(
        r"about \d+ min to prepare at [\d,]+ samples/s, as 4 JPEG files", planned.stdout
    )


@pytest.mark.parametrize("option", ["--data", "--output"])
def test_a_plan_refuses_a_place_that_cannot_be_written(tmp_path: Path, option: str) -> None:
    places = {"--data": tmp_path / "data", "--output": tmp_path / "out"} | {option: Path("/proc/x")}
    planned = cepheid_run(*PLAN, *(word for place in places.items() for word in place))
    assert planned.returncode == 1, planned.stderr
    said = f"refused: {option} /proc/x: /proc cannot be written; fix: give another folder"
    assert said in planned.stdout.splitlines()


def test_a_plan_says_that_a_limited_run_never_counts(tmp_path: Path) -> None:
    places = ["--data", tmp_path / "data", "--output", tmp_path / "out"]
    planned = cepheid_run(*PLAN, "--limit", "64", *places)
    assert planned.returncode == 0, planned.stderr
    assert "note:    --limit 64: this run only tries, and never counts (T10)" in planned.stdout


def test_a_plan_asks_for_the_share_of_a_disk_that_a_limited_run_needs(tmp_path: Path) -> None:
    line = ["--scale", "full", "--output", tmp_path / "out", "--data", tmp_path, "--dry-run"]
    planned = cepheid("run", "resnet50", *line, "--limit", "1281")
    assert "(about 0.155 + 0.153 GB, " in planned.stdout
    assert "`cepheid data resnet50 --scale full --limit 1281` prepares it" in planned.stdout
    assert "are needed for the data" not in planned.stdout
    assert "runs:    0 of 1 are present" in planned.stdout, "a try is one run"
    planned = cepheid("run", "gnmt", *line, "--limit", "20")
    assert "(about 0.001 + 0.001 GB, " in planned.stdout, "without exponents"
    assert "if the disk reads" not in planned.stdout


def test_a_plan_refuses_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: Patch) -> None:
    config = configure(definition.load("galaxy_shape", "mini"), data_root=tmp_path / "data")
    assert not [*_find_places(config, tmp_path, 5)]
    full = shutil._ntuple_diskusage(10**12, 10**12 - 10**6, 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    data, output = _find_places(config, tmp_path, 5)
    assert "about 1.0 GB are needed for the data and 1 MB are free" in data
    assert "--output" in output
