"""`cepheid measure scaling` as its user meets it, on a tiny definition with one and two ranks."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="measuring needs the extra torch")
pytest.importorskip("matplotlib", reason="the figure needs the extra site")

from cepheid.measure.engine import own_process
from cepheid.measure.studies.scaling import ranks, scaling
from cepheid.measure.studies.scaling.points import ALONE, TOGETHER
from cepheid.measure.studies.scaling.records import read_scaling
from cepheid.measure.studies.scaling.tasks import Job
from cepheid.rules.errors import UserError
from cepheid.tools.measure.__main__ import main
from tests import tiny
from tests.measure.test_scaling import point
from tests.processes import warm_context


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "_count_places", lambda: (2, "processors"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["galaxy_shap"], 'did you mean "galaxy_shape"'),
        (["galaxy_generation"], "does not train in steps"),
        (["galaxy_shape", "--ranks", "1,x"], "with commas"),
        (["galaxy_shape", "--ranks", "64"], "this machine has 2 processors"),
        (["galaxy_shape", "--ranks", "2", "--strong", "--batch-size", "9"], "multiple of 2"),
        (["galaxy_shape", "--batch-size", "0"], "expected 1 to 6,000"),
        (["galaxy_shape", "--turn-seconds", "0"], "more than 0 and at most 600"),
        (["galaxy_shape", "--set", "global_batch_size=4"], "with --batch-size"),
        (["galaxy_shape", "--set", "opt_nam=adam", "--input", "synthetic"], "opt_nam"),
    ],
)
def test_wrong_use(arguments: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        main(["scaling", *arguments, "--output", str(tmp_path / "out")])


def test_a_launcher_has_the_say_on_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="the launcher has started 2 ranks"):
        main(["scaling", "galaxy_shape", "--ranks", "4"])


def fail_on_the_last_rank() -> int:
    if os.environ.get("RANK") == "1":
        raise UserError("no room")
    return int(os.environ.get("WORLD_SIZE", "1"))


def end_abruptly() -> None:
    os._exit(3)


def test_ranks_are_processes_with_places_and_end_together() -> None:
    warm_context()
    assert own_process.run_on_ranks(1, fail_on_the_last_rank) == 1
    with pytest.raises(UserError, match="no room"):
        own_process.run_on_ranks(2, fail_on_the_last_rank)
    with pytest.raises(UserError, match="was killed"):
        own_process.run_on_ranks(2, end_abruptly)


def test_one_and_two_ranks_of_a_tiny_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    warm_context()
    data = {"train_samples": 48, "evaluation_samples": 21}
    folder = tmp_path / "benchmarks"
    tiny.install(folder, monkeypatch, "resnet50", data=data, model={"width": 4})
    call = ["resnet50", "--ranks", "1,2", "--batch-size", "4", "--rounds", "3"]
    call += ["--turn-seconds", "0.01"]
    call += ["--set", "precision=fp32", "--set", "model_bn_span=4"]
    call += ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "out")]
    assert main(["scaling", *call]) == 0
    said = capsys.readouterr().out
    for text in ("weak scaling", "samples/s", "ceiling", "2 ranks: input"):
        assert text in said
    assert (tmp_path / "out" / "scaling.png").read_bytes().startswith(b"\x89PNG")
    configuration, (one, two) = read_scaling(tmp_path / "out")
    assert configuration["mode"] == "weak"
    assert (one.ranks, one.batch_size, two.ranks, two.batch_size) == (1, 4, 2, 8)
    assert one.efficiency("real").median == 1
    assert one.link is None
    assert two.link is not None
    assert two.link.collectives >= 1
    assert two.implementation["ranks"] == 2
    assert two.implementation["threads_per_rank"] == 1
    assert len(two.rates(ALONE, "real")) == len(two.rates(TOGETHER, "synthetic")) == 3
    assert two.phases_ms["communication"] > 0
    assert sum(two.shares.values()) == pytest.approx(1)
    assert main(["scaling", *call]) == 0
    assert "nothing to measure" in capsys.readouterr().out
    with pytest.raises(UserError, match="mode was"):
        main(["scaling", *call, "--strong"])


def test_a_number_of_ranks_that_fails_is_named_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[int] = []

    def run(count: int, function: object, job: Job) -> Any:
        assert function is ranks.measure_ranks
        tried.append(count)
        if tried == [1, 2]:
            raise UserError("no memory")
        return point(count)

    monkeypatch.setattr(own_process, "run_on_ranks", run)
    call = ["galaxy_shape", "--input", "synthetic", "--output", str(tmp_path)]
    assert main(["scaling", *call]) == 1
    assert "2 ranks (2 of 2): not measured: no memory" in capsys.readouterr().out
    assert main(["scaling", *call]) == 0
    assert tried == [1, 2, 2]
    table = json.loads((tmp_path / "scaling.json").read_text())["table"]
    assert [row["ranks"] for row in table] == [1, 2]
