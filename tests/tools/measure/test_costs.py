"""`cepheid measure costs` as its user meets it, on a few pictures."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="measuring needs the extra torch")
pytest.importorskip("matplotlib", reason="the figures need the extra site")

import torch

from cepheid.measure.studies import epochs
from cepheid.measure.studies.costs import cost_steps, costs, ladder
from cepheid.measure.studies.costs.figure import draw_ladder
from cepheid.measure.studies.epochs import Run
from cepheid.rules.errors import UserError
from cepheid.tools.measure.__main__ import main
from tests import tiny


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet50"], "names no steps"),
        (["kfac", "--settle", "-1"], "expected 0 or more"),
        (["kfacc"], 'did you mean "kfac"'),
        (["kfac", "--compare", "netwroks"], 'did you mean "networks"'),
        (["transformer", "--compare", "networks"], "leave --compare out"),
        (["kfac", "--compare", "networks", "--set", "network=resnet34"], "differ in network"),
        (["kfac", "--set", "opt_preconditioner=none"], "then there is no K-FAC"),
        (["kfac", "--set", "kfac_inverse=eigen"], "for Cholesky inverses only"),
    ],
)
def test_wrong_use(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        main(["costs", *arguments])


@pytest.mark.promise  # seven kinds of updates are timed in turns
def test_all_of_it_on_a_few_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"train_samples": 48, "evaluation_samples": 21}
    files = [cost_steps.FILE, epochs.COMPARISONS]
    tiny.install(
        tmp_path / "benchmarks", monkeypatch, "kfac", keep=files, data=data, model={"width": 4}
    )
    monkeypatch.setattr(costs, "UPDATES", 1)
    runs = [Run("SGD", 1, 12.0, {}), Run("SGD", 2, None, {}), Run("K-FAC", 1, 6.0, {})]
    monkeypatch.setattr(epochs, "load_runs", lambda *arguments: runs)
    arguments = ["kfac", "--rounds", "3", "--settle", "1", "--set", "global_batch_size=8"]
    arguments += ["--set", "precision=fp32", "--data", str(tmp_path / "data")]
    arguments += ["--figures", str(tmp_path / "figures"), "--output", str(tmp_path / "costs.json")]
    assert main(["costs", *arguments]) == 0
    printed = capsys.readouterr().out
    for text in ("distributed inverse", "4.40", "simulated", "projected, 8 ranks", "1 of 2 seeds"):
        assert text in printed
    assert "projected, 16 ranks" not in printed  # of 8 samples
    assert "float21" not in printed  # nothing travels on one rank
    written = json.loads((tmp_path / "costs.json").read_text())
    assert [update["name"] for update in written["updates"]] == [
        "distributed inverse",
        "stale Fisher",
    ]
    assert written["updates"][0]["ratio"] > 0
    assert written["updates"][0]["phases_ms"][0]["inverse"] > 0
    plain, preconditioned = written["times_to_target"]
    assert (plain["epochs"], plain["reached"], plain["updates"]) == (12.0, 1, 72.0)
    # Which of the two is shorter depends on times of a tiny network.
    assert min(preconditioned["projected_minutes"]["2"], preconditioned["minutes"]) > 0
    capsys.readouterr()
    runs = [Run("ResNet-50, SGD", 1, 12.0, {}), Run("ResNet-50, K-FAC", 1, 6.0, {})]
    everything = cost_steps.load_compared
    monkeypatch.setattr(cost_steps, "load_compared", lambda *names: everything(*names)[2:3])
    arguments[-1] = str(tmp_path / "networks.json")
    assert main(["costs", *arguments, "--compare", "networks"]) == 0
    printed = capsys.readouterr().out
    assert "ResNet-50, stale Fisher" in printed
    assert "Reported" not in printed
    of_group = json.loads((tmp_path / "networks.json").read_text())["compared"]["ResNet-50"]
    assert [row["epochs"] for row in of_group["times_to_target"]] == [12.0, 6.0]
    for balance in written["balance"]:
        assert len(balance["milliseconds"]) == balance["ranks"]
    for name in ("phases.png", "balance.png"):
        assert (tmp_path / "figures" / name).read_bytes().startswith(b"\x89PNG")


def test_a_ratio_outside_its_quartiles_is_drawn(tmp_path: Path) -> None:
    phases = {name: {"forward": 1.0} for name in ("plain", "faster", "slower")}
    speedups = {"plain": (1.0, 1.0, 1.0), "faster": (1.3, 1.1, 1.2), "slower": (0.7, 0.8, 0.9)}
    draw_ladder(tmp_path / "ladder.png", "a ladder", phases, speedups, ["forward"], "here")
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.promise  # three kinds of updates are timed in turns
def test_the_ladder_leaves_out_what_does_not_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"train_samples": 48, "evaluation_samples": 21}
    files = [cost_steps.FILE]
    tiny.install(
        tmp_path / "benchmarks", monkeypatch, "kfac", keep=files, data=data, model={"width": 4}
    )
    monkeypatch.setattr(ladder, "UPDATES", 1)

    def fail(*arguments: object, **named: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", fail)
    arguments = ["kfac", "--ladder", "--rounds", "3", "--settle", "1"]
    arguments += ["--set", "global_batch_size=8", "--data", str(tmp_path / "data")]
    arguments += ["--figures", str(tmp_path), "--output", str(tmp_path / "ladder.json")]
    assert main(["costs", *arguments]) == 0
    printed = capsys.readouterr().out
    for text in ("channels last", "left out: compiled: compile=on, but"):
        assert text in printed
    written = json.loads((tmp_path / "ladder.json").read_text())
    assert [rung["name"] for rung in written["rungs"]] == [
        "float32, channels first",
        "channels last",
    ]
    assert list(written["left_out"]) == ["compiled", "bfloat16"]
    assert written["rungs"][0]["speedup"] == [1, 1, 1]
    assert len(written["rungs"][1]["timing"]["seconds"]) == 3
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")
