"""Cepheid in programs of others: datasets, networks, logs, and the examples of docs/python.md."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cepheid
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import definition, extras
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT
from tests import assert_refused, tiny
from tests.compliance.asserting import Patch

SIZES = {"train_samples": 64, "evaluation_samples": 5}
OURS = ROOT / "submissions" / "cepheid"
SAMPLES: dict[
    str, dict[str, Any]
] = {  # a benchmark for each kind of data: names, types and shapes of a sample
    "galaxy_shape": {"stamps": ("float32", (6, 64, 64)), "e1": ("float32", ()), "snr": None},
    "resnet50": {"images": ("uint8", None), "names": ("str", None), "label": ("int32", ())},
    "chest_xray": {"images": ("uint8", None), "findings": ("uint8", (14,))},
    "ssd": {"images": ("uint8", (64, 64, 3)), "boxes": ("float32", None)},
    "video_prediction": {"frames": ("uint8", (12, 16, 16, 1))},
    "gnmt": {"source": ("int64", None), "target": ("int64", None), "reference": ("str", None)},
}


def load(name: str, data_root: Path, monkeypatch: Patch, split: str) -> Any:
    """Load a split of a small dataset of a benchmark, which the session prepares once."""
    needed = ("torch", *definition.load(name, "mini").extras)
    if missing := extras.find_missing(each for one in needed for each in extras.PACKAGES_OF[one]):
        pytest.skip(extras.explain_missing(*missing))
    from tests.prepared import prepare

    tiny.use(tiny.folder_of(name, data=SIZES, data_digest=None), monkeypatch)
    prepare(definition.load(name, "mini").data, data_root)
    return cepheid.datasets.load(name, split, root=str(data_root))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_dataset_is_samples_and_arrays(name: str, data_root: Path, monkeypatch: Patch) -> None:
    from torch.utils.data import Dataset

    train = load(name, data_root, monkeypatch, "train")
    evaluation = load(name, data_root, monkeypatch, "evaluation")
    assert (len(train), len(evaluation)) == (64, 5)
    assert isinstance(train, Dataset)
    for sample in (train[0], evaluation[4], evaluation[-1], pickle.loads(pickle.dumps(train))[63]):
        for key, expected in SAMPLES[name].items():
            kind, shape = expected or ("float32", ())
            value = sample[key]
            assert (value.dtype if hasattr(value, "dtype") else type(value).__name__) == kind
            assert shape in (None, getattr(value, "shape", None))
    for key, values in evaluation.arrays.items():
        assert len(values) == 5
        assert (values[4].astype(evaluation[4][key].dtype) == evaluation[4][key]).all()
    assert f"{name}, mini scale, train: 64 samples" in repr(train)
    with pytest.raises(IndexError):
        evaluation[5]


def test_a_loader_with_workers_takes_it(data_root: Path, monkeypatch: Patch) -> None:
    train = load("galaxy_shape", data_root, monkeypatch, "train")
    from torch.utils.data import DataLoader

    batch = next(iter(DataLoader(train, batch_size=4, num_workers=1)))
    assert batch["stamps"].shape == (4, 6, 64, 64)


def test_wrong_names_are_refused() -> None:
    for arguments, message in [
        (("galaxy_shap",), 'did you mean "galaxy_shape"'),
        (("galaxy_shape", "test"), r'no split "test".*expected "train" or "evaluation"'),
        (("galaxy_shape", "trian"), 'did you mean "train"'),
    ]:
        assert_refused(message, cepheid.datasets.load, *arguments)


@pytest.mark.parametrize("name", definition.names())
def test_every_network_is_there_with_the_parameters_of_its_definition(name: str) -> None:
    pytest.importorskip("torch")
    network = cepheid.models.load(name, weights="initial")
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == definition.load(name, "mini").model["parameters"]


def test_weights_are_those_of_a_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    network = cepheid.models.load("galaxy_shape", weights="initial")
    torch.save({"model": network.state_dict()}, tmp_path / "run_0.pt")
    loaded = cepheid.models.load("galaxy_shape", weights=tmp_path / "run_0.pt")
    assert not loaded.training
    stamps = torch.randn(2, 6, 64, 64)
    assert torch.equal(loaded(stamps)[0], network.eval()(stamps)[0])
    with pytest.raises(UserError, match=r"weights of another network.*same benchmark and scale"):
        cepheid.models.load("galaxy_shape", "full", weights=tmp_path / "run_0.pt")
    with pytest.raises(UserError, match=r'no published weights; .*weights="initial"'):
        cepheid.models.load("galaxy_shape")
    with pytest.raises(UserError, match="no such checkpoint"):
        cepheid.models.load("galaxy_shape", weights=tmp_path / "run_1.pt")


def test_galaxies_are_generated_again_from_a_seed() -> None:
    torch = pytest.importorskip("torch")
    model = cepheid.models.load("galaxy_generation")
    galaxies = model.generate(3, seed=1)
    assert galaxies.shape == (3, 6, 32, 32)
    assert torch.equal(galaxies, model.generate(3, seed=1))
    assert not torch.equal(galaxies, model.generate(3))


def test_logs_and_results_are_read(monkeypatch: Patch) -> None:
    pytest.importorskip("scipy")
    (folder,) = OURS.glob("results/2x-amd-epyc-zen4/galaxy_shape-mini-closed")
    log = cepheid.read_log(folder / "result_0.txt")
    assert isinstance(log, RunLog)
    assert log.converged
    assert log.quality_curve[-1].metrics["e_rmse"] <= 0.117
    monkeypatch.setattr("cepheid.logs.find_spec", lambda name: None)  # without pandas
    (record,) = cepheid.results(folder)
    assert record["benchmark"] == "galaxy_shape"
    assert record["score_minutes"] > 0
    monkeypatch.undo()
    pytest.importorskip("pandas")
    frame = cepheid.results(folder, folder.with_name("transformer-mini-closed"))
    assert list(frame["benchmark"]) == ["galaxy_shape", "transformer"]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"could not be prepared:\n.*there is no such folder"):
        cepheid.datasets.load("resnet50", split="train", scale="full", root=str(tmp_path))
    assert_refused("there is no such run log", cepheid.read_log, tmp_path / "result_0.txt")
    assert_refused("no run logs here", cepheid.results, tmp_path)
    assert_refused("no result was found", cepheid.results)
    with pytest.raises(AttributeError, match="module 'cepheid' has no attribute 'dataset'"):
        _ = cepheid.dataset  # type: ignore[attr-defined]


def test_importing_it_loads_nothing_else() -> None:
    program = "import sys, cepheid; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "cepheid" in loaded
    assert not loaded & {"torch", "numpy", "scipy", "yaml", "pandas"}


@pytest.mark.promise
@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ("posterior.py", ["± 0.", "truth"]),
        ("ten_galaxies.py", ["galaxy 9: u "]),
        ("kfac.py", ["with K-FAC 0."]),
    ],
)
def test_the_examples_run(script: str, printed: list[str], tmp_path: Path) -> None:
    """Anywhere; the first prepares its data. Its definition is small, so that it ends soon."""
    pytest.importorskip("torch")
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    if script == "posterior.py":
        pytest.importorskip("galsim")
        variables["CEPHEID_BENCHMARKS"] = str(tiny.folder_of("galaxy_shape", data=SIZES))
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "examples" / script)],
        cwd=tmp_path, env=variables, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(words in done.stdout for words in printed), done.stdout
