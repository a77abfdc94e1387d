"""`cepheid measure epochs`: runs are replaced by the curves that they would leave."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
import yaml

from cepheid.measure.engine import trainings
from cepheid.measure.engine.trainings import Training
from cepheid.measure.studies import epochs, epochs_study
from cepheid.measure.studies.epochs import Arm, Run
from cepheid.reference.run.config import configure
from cepheid.reference.run.execution import add_switches
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition, rcp
from cepheid.rules.errors import UserError
from cepheid.rules.evidence import Curve
from cepheid.rules.rcp import ReferencePoints
from cepheid.tools.console.terminal import Terminal
from cepheid.tools.measure.__main__ import main
from tests import tiny
from tests.tools.no_training import FakeTraining, Points

Printed = pytest.CaptureFixture[str]
MINI = definition.load("resnet50", "mini")
EPOCH = MINI.train_samples
POOR, GOOD = {"accuracy": 0.5}, {"accuracy": 0.99}
MACHINE = {"framework": "torch", "device": "cpu"}
EPOCHS_OF = {"scaled": 20, "unscaled": 16}
COMPARED = """
momentum:
  title: LARS by the form of its momentum
  source: somebody, arXiv:1909.09756
  published_at: full scale
  scales:
    mini:
      set: [opt_name=lars]
      arms:
        - {name: scaled, set: [opt_momentum_form=scaled], published_epochs: 72.8}
        - {name: unscaled, set: [opt_momentum_form=unscaled, opt_momentum=0.929]}
"""


def make_points(run: Training) -> Points:
    return (4 * EPOCH, POOR), (EPOCHS_OF[run.variant] * EPOCH, GOOD)


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTraining:
    """No training, and a folder of benchmarks with nothing measured."""
    tiny.install(tmp_path, monkeypatch, "resnet50", keep=[epochs.PUBLISHED])
    (tmp_path / "resnet50" / epochs.COMPARISONS).write_text(COMPARED)
    fake = FakeTraining(make_points)
    monkeypatch.setattr(trainings, "train_all", fake)
    return fake


def cepheid_epochs(*arguments: str) -> int:
    return main(["epochs", "resnet50", *arguments])


def compare(*arguments: str) -> int:
    return cepheid_epochs("--compare", "momentum", *arguments)


def read_runs(folder: Path, comparison: str = "momentum") -> Any:
    recorded = json.loads((folder / "resnet50" / epochs.MEASURED).read_text())
    return recorded["mini"][comparison]["runs"]


def test_settings_are_compared_and_drawn_without_curves_where_none_are_kept(
    training: FakeTraining, tmp_path: Path, capsys: Printed
) -> None:
    figure = tmp_path / "momentum.png"
    assert compare("--seeds", "1", "2", "--figure", str(figure)) == 0
    assert len(training.runs) == 4
    last = training.runs[-1].config
    assert last.definition.timing.eval_every_samples == EPOCH // 2
    values = last.hyperparameters
    assert (values["opt_momentum_form"], values["opt_momentum"]) == ("unscaled", 0.929)
    printed = capsys.readouterr().out
    for said in ("20 20", "16 16", "72.8", "arXiv:1909.09756"):
        assert said in printed
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert read_runs(tmp_path)[0]["evaluations"] == [[4.0, POOR], [20.0, GOOD]]
    file = tmp_path / "resnet50" / epochs.MEASURED
    document = json.loads(file.read_text())
    for run in document["mini"]["momentum"]["runs"]:
        del run["evaluations"]
    file.write_text(json.dumps(document))
    figure.unlink()
    assert compare("--figure", str(figure)) == 0
    assert len(training.runs) == 4
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_recorded_run_is_not_made_again_unless_its_settings_are_others(
    training: FakeTraining, capsys: Printed, tmp_path: Path
) -> None:
    compare("--seeds", "1")
    compare("--seeds", "1", "2")
    assert [training.config.seed for training in training.runs] == [1, 1, 2, 2]
    compare()
    assert len(training.runs) == 4
    file = tmp_path / "resnet50" / epochs.COMPARISONS
    file.write_text(file.read_text().replace("opt_momentum=0.929", "opt_momentum=0.93"))
    compare("--seeds", "1", "2")
    assert [run.variant for run in training.runs[4:]] == ["unscaled", "unscaled"]


def test_some_settings_are_trained_alone(training: FakeTraining) -> None:
    compare("--seeds", "1", "--only", "unscaled")
    compare("--seeds", "1", "2", "--only", "scaled")
    assert training.names == [("unscaled", 1), ("scaled", 1), ("scaled", 2)]
    with pytest.raises(UserError, match=r'did you mean "unscaled"\? \(all: scaled; unscaled\)'):
        compare("--only", "unscale")
    with pytest.raises(UserError, match=r"--only: it needs --compare"):
        cepheid_epochs("--only", "unscaled")


def test_commands_that_run_together_lose_no_run(training: FakeTraining, tmp_path: Path) -> None:
    comparison = epochs.load_comparison("resnet50", "mini", "momentum")

    def keep(seed: int) -> None:
        for arm in ("scaled", "unscaled", "scaled"):
            epochs._keep_run(MINI, comparison, Run(arm, seed, 16.0, GOOD))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(keep, range(24)))
    found = [(run.arm, run.seed) for run in epochs.load_runs(MINI, comparison)]
    assert sorted(found) == sorted(itertools.product(("scaled", "unscaled"), range(24)))


@pytest.mark.parametrize(
    ("before", "after", "budgets"),
    [
        ("set: [opt_name=lars]", "set: []\n      budget_epochs: 90", [90 * EPOCH, 90 * EPOCH]),
        ("opt_momentum=0.929]", "opt_momentum=0.929], budget_epochs: 5", [5 * EPOCH]),
    ],
    ids=["of a comparison", "of a setting"],
)
def test_runs_with_a_budget_of_their_own_are_made_again(
    training: FakeTraining, tmp_path: Path, before: str, after: str, budgets: list[int]
) -> None:
    for text in (COMPARED, COMPARED.replace(before, after)):
        (tmp_path / "resnet50" / epochs.COMPARISONS).write_text(text)
        compare("--seeds", "1")
    found = [run.config.definition.timing.max_samples for run in training.runs]
    assert found == [MINI.timing.max_samples] * 2 + budgets


def test_what_another_comparison_has_is_not_made_again(
    training: FakeTraining, tmp_path: Path, capsys: Printed
) -> None:
    compare("--seeds", "1", "2")
    file = tmp_path / "resnet50" / epochs.COMPARISONS
    other = COMPARED.replace("momentum:", "other:", 1).replace("name: unscaled", "name: of another")
    changed = other.replace("set: [opt_momentum_form=scaled]", "set: [opt_momentum=0.9]")
    file.write_text(COMPARED + changed)
    cepheid_epochs("--compare", "other", "--seeds", "1", "2")
    assert [run.variant for run in training.runs[4:]] == ["scaled", "scaled"]
    runs = [(run["arm"], run["seed"], run["epochs"]) for run in read_runs(tmp_path, "other")]
    others = [run for run in runs if run[0] != "scaled"]
    assert others == [("of another", 1, 16.0), ("of another", 2, 16.0)]


def test_of_the_same_runs_those_with_curves_are_taken(
    training: FakeTraining, tmp_path: Path
) -> None:
    compare("--seeds", "1")
    file, record = (tmp_path / "resnet50" / name for name in (epochs.COMPARISONS, epochs.MEASURED))
    document = json.loads(record.read_text())
    without = json.loads(json.dumps(document["mini"]["momentum"]))
    for run in without["runs"]:
        del run["evaluations"]
    document["mini"] = {"older": without, **document["mini"]}
    record.write_text(json.dumps(document))
    file.write_text(COMPARED + COMPARED.replace("momentum:", "other:", 1))
    cepheid_epochs("--compare", "other", "--seeds", "1")
    assert len(training.runs) == 2
    assert all(len(run["evaluations"]) == 2 for run in read_runs(tmp_path, "other"))


def test_the_figure_counts_the_runs_that_missed() -> None:
    from matplotlib.figure import Figure

    compared = epochs.load_comparison("kfac", "mini", "networks")
    arm = compared.arms[0].name
    runs = [Run(arm, 1, 20.0, GOOD, []), Run(arm, 2, None, POOR, [])]
    axes = Figure().add_subplot()
    epochs_study.draw_epochs(axes, compared, runs)
    assert [text.get_text() for text in axes.texts] == ["1 of 2 missed"]
    means = [line for line in axes.lines if line.get_marker() == "|"]
    assert not means  # of those that reached the target alone
    epochs_study.draw_epochs(axes, compared, runs[:1])
    means = [line for line in axes.lines if line.get_marker() == "|"]
    assert [np.asarray(mean.get_xdata()).tolist() for mean in means] == [[20.0]]


def test_other_cycles_are_measured_again(training: FakeTraining, tmp_path: Path) -> None:
    file = tmp_path / "resnet50" / epochs.COMPARISONS
    cycle = "cycles: [{steps: 9, peak: 0.5, power: 1, decay_steps: 9}]"
    for text in (cycle, cycle.replace("0.5", "0.25")):
        file.write_text(COMPARED.replace("set: [opt_momentum_form=scaled],", f"set: [], {text},"))
        compare("--seeds", "1")
    peaks = [
        run.create(TorchRanks(0, 1, torch.device("cpu"))).shape.schedule.peak
        for run in training.runs
    ]
    assert peaks == [0.5, 0.1, 0.25]  # the other setting is the same


def test_settings_may_reach_further_have_groups_and_need_several_ranks() -> None:
    comparison = epochs.load_comparison("resnet50", "mini", "norms")
    runs = [epochs._prepare_training(MINI, arm, 1, Path()) for arm in comparison.arms]
    models = [run.config.definition.model for run in runs]
    assert [model["batch_norm_momentum"] for model in models] == [0.1, 0.05]
    assert len({str(epochs._describe(arm)) for arm in comparison.arms}) == 2
    networks = epochs.load_comparison("kfac", "mini", "networks")
    assert networks.arms[1].name == "ResNet-18, K-FAC"
    assert "network=resnet18" in networks.arms[1].overrides
    firsts = [epochs_study.find_first(networks, arm).name for arm in networks.arms[:4]]
    assert firsts == ["ResNet-18, SGD"] * 2 + ["ResNet-34, SGD"] * 2
    full = definition.load("kfac", "full")
    comparison = epochs.load_comparison("kfac", "full", "formats")
    with pytest.raises(UserError, match=r"differ only on 2 or more ranks, and there is 1; fix: "):
        epochs.measure_missing(full, comparison, [1], comparison.arms, Path(), Terminal())


def test_a_missed_target_is_a_finding(
    training: FakeTraining, tmp_path: Path, capsys: Printed
) -> None:
    training.make_points = lambda run: ((8 * EPOCH, POOR if run.variant == "unscaled" else GOOD),)
    assert compare("--seeds", "1") == 1
    line = next(row for row in capsys.readouterr().out.splitlines() if row.startswith("unscaled "))
    assert line.split()[1:3] == ["1", "1"]
    assert [run["epochs"] for run in read_runs(tmp_path) if run["arm"] == "unscaled"] == [None]


def test_by_batch_size_nothing_is_trained(
    training: FakeTraining, tmp_path: Path, capsys: Printed
) -> None:
    assert cepheid_epochs() == 0
    printed = capsys.readouterr().out
    assert "nothing is measured" in printed
    assert "Google" in printed
    points = ReferencePoints(MINI.digest)
    for seed, count in ((1, 16), (2, 20)):
        run = rcp.Run(seed, count * EPOCH, float(count), 1.0, GOOD)
        points = points.add_run({rcp.BATCH_SIZE: 64}, MACHINE, run)
    rcp.save("resnet50", "mini", points)
    figure = tmp_path / "epochs.png"
    assert cepheid_epochs("--figure", str(figure)) == 0
    assert "16 20" in capsys.readouterr().out
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert training.runs == []


COMPARISONS = [
    pytest.param(path.parent.name, scale, name, id=f"{path.parent.name}-{scale}-{name}")
    for path in sorted(definition.locate_benchmarks().glob(f"*/{epochs.COMPARISONS}"))
    for name, facts in yaml.safe_load(path.read_text(encoding="utf-8")).items()
    for scale in facts["scales"]
]


@pytest.mark.parametrize(("name", "scale", "compared"), COMPARISONS)
def test_every_comparison_is_what_open_allows(name: str, scale: str, compared: str) -> None:
    chosen = definition.load(name, scale)
    comparison = epochs.load_comparison(name, scale, compared)
    chosen = add_switches(comparison.vary(chosen), comparison.switches)
    configs = [
        configure(chosen, division="open", overrides=arm.overrides) for arm in comparison.arms
    ]
    values = [
        (config.hyperparameters, config.execution, arm.cycles, arm.changes)
        for config, arm in zip(configs, comparison.arms, strict=True)
    ]
    assert all(one != other for one, other in itertools.combinations(values, 2))
    # No batch size is one of the other scale.
    assert {config.global_batch_size >= 1000 for config in configs} == {scale == "full"}


def test_a_problem_of_a_study_has_records_of_its_own_and_settings_of_its_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mini, full = (definition.load("kfac", scale) for scale in ("mini", "full"))
    assert epochs.load_comparison("kfac", "full", "formats").vary(full) == full
    other = epochs.load_comparison("kfac", "mini", "formats").vary(mini)
    assert (other.data["source"], other.train_samples) == ("shapes", 4000)
    assert [str(target) for target in other.quality] == ["accuracy >= 0.85"]
    assert (other.timing.eval_every_samples, other.timing.max_samples) == (4000, 64_000)
    assert configure(other).hyperparameters["opt_learning_rate_decay_epochs"] == 7
    assert other.digest != mini.digest
    assert other.data_digest is None
    text = "momentum: {scales: {mini: {set: [], arms: []}}}"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    with pytest.raises(UserError, match=r"no settings for scale full .*those for: mini"):
        epochs.load_comparison("resnet50", "full", "momentum")


def test_a_run_that_diverges_before_its_first_evaluation_has_missed() -> None:
    assert epochs.summarise(Curve("64", 2, 9.0, ()), MINI) == Run("64", 2, None, {}, [])


def test_nothing_starts_where_no_run_is_missing() -> None:
    assert list(trainings.train_all(MINI, [], Path(), Terminal())) == []


def test_the_share_of_another_setting_is_paired_by_seed() -> None:
    arms = tuple(Arm(name, ()) for name in ("SGD", "K-FAC"))
    pairs = [(10.0, 5.0), (12.0, 7.2), (16.0, 8.0), (None, 6.0)]
    runs = [
        Run(arm.name, seed, both[place], {})
        for seed, both in enumerate(pairs)
        for place, arm in enumerate(arms)
    ]
    # 0.5, 0.6, 0.5: mean 0.533, standard deviation 0.0577, Student's t of 2 degrees 4.303
    assert epochs_study.compare_by_seed(arms[0], arms[1], runs) == "0.53 (0.39 to 0.68)"
    assert epochs_study.compare_by_seed(arms[0], arms[0], runs) == ""


def test_what_a_task_refuses_is_refused_before_data_are_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: Any) -> NoReturn:
        raise UserError("micro_batch=7: …")

    def prepare(*arguments: object) -> NoReturn:
        raise AssertionError("data were prepared")

    monkeypatch.setattr(trainings, "prepare_data", prepare)
    training = Training("run", "correct", configure(MINI), refuse)
    with pytest.raises(UserError, match="micro_batch=7"):
        list(trainings.train_all(MINI, [training], Path(), Terminal()))
