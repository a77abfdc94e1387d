"""The table of all studies: what each refuses before anything is measured, and its help."""

import shutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="measuring needs the extra torch")
pytest.importorskip("matplotlib", reason="the figures need the extra site")

from cepheid.measure.engine.study import Study
from cepheid.measure.studies import formats
from cepheid.measure.studies.formats import PACKINGS, Packing, is_installed
from cepheid.measure.studies.scaling import scaling
from cepheid.reference.machine.accelerators import DEVICE, DEVICE_MODULE
from cepheid.rules.errors import UserError
from cepheid.tools.measure.__main__ import MEASUREMENTS, main
from tests.measure.test_projection import write_folder

NUMBERS = "expected numbers up to"
WRONG_USE: Mapping[str, Sequence[tuple[str, str]]] = {
    # Arguments, and what the error says; FOLDER has two points of scaling.
    "costs": [
        ("resnet50", "names no steps .* benchmarks that do: kfac"),
        ("kfac --settle -1", "expected 0 or more"),
        ("kfacc", 'did you mean "kfac"'),
        ("kfac --compare netwroks", 'did you mean "networks"'),
        ("transformer --compare networks", "leave --compare out"),
        ("kfac --compare networks --set network=resnet34", "differ in network"),
        ("kfac --set opt_preconditioner=none", "then there is no K-FAC"),
        ("kfac --set kfac_inverse=eigen", "for Cholesky inverses only"),
    ],
    "epochs": [
        ("resnet50 --compare momentun", "did you mean"),
        ("resnet50 --seeds 1", "--compare"),
        ("resnet50 --figure /no/such/folder/e.png", "cannot write"),
    ],
    "flops": [
        ("galaxy_shape --device acme", "the device acme was asked for .* it can use cpu"),
        ("galaxy_shape --device-module nowhere.py", "nowhere.py: expected a Python file"),
    ],
    "formats": [("--files 1", "--files 1: expected 10 or more")],
    "partitions": [
        ("resnet50", "cannot share an image over 1 ranks; start 2 or 4 ranks"),
        ("transformer", "has no execution setting spatial_partitions"),
        ("resnet50 --sizes 64,big", NUMBERS),
    ],
    "project": [
        ("resnet5 --from FOLDER", 'did you mean "resnet50"'),
        ("resnet50 --from FOLDER --within nvlink", "is no known link"),
        ("resnet50 --from FOLDER --devices 1,x", "with commas between them"),
        ("resnet50 --from FOLDER --devices 99999999", "up to 1,048,576"),
        ("resnet50 --from FOLDER --devices-per-node 0", "expected 1 or more"),
        ("resnet50 --from FOLDER --faster 0", "must be above 0"),
        ("resnet50 --from FOLDER --overlap 2", "from 0 to 1"),
        ("resnet50 --from FOLDER --batch-size 0", "expected 1 or more"),
        ("galaxy_shape --from FOLDER", "its benchmark is resnet50, expected galaxy_shape"),
        ("resnet50 --from FOLDER --scale full", "its scale is mini, expected full"),
        ("resnet50 --from nowhere", "`cepheid measure scaling` writes it"),
        ("kfac --published", "benchmarks that have some: resnet50"),
    ],
    "scaling": [
        ("galaxy_shap", 'did you mean "galaxy_shape"'),
        ("galaxy_generation", "does not train in steps"),
        ("galaxy_shape --ranks 1,x", "with commas"),
        ("galaxy_shape --ranks 64", "this machine has 2 processors"),
        ("galaxy_shape --ranks 2 --strong --batch-size 9", "multiple of 2"),
        ("galaxy_shape --batch-size 0", "expected 1 to 6,000"),
        ("galaxy_shape --turn-seconds 0", "more than 0 and at most 600"),
        ("galaxy_shape --set global_batch_size=4", "with --batch-size"),
        ("galaxy_shape --set opt_nam=adam --input synthetic --output FOLDER", "opt_nam"),
    ],
    "speed": [
        ("galaxy_shape --only stepp", 'did you mean "step"'),
        ("galaxy_shap", 'did you mean "galaxy_shape"'),
        ("galaxy_generation --only step", "all: sampling, decoding, generation, memory"),
        ("kfac --only step", "benchmarks/kfac/plain.py is missing"),
        ("galaxy_shape --only step --profile", "leave out --only"),
        ("galaxy_shape --only sampling", "no such measurement"),
    ],
    "staleness": [
        ("galaxy_generation", "does not train"),
        ("galaxy_shape --delays -1", "--delays -1: expected 0 to 1,000"),
        ("galaxy_shape --delays 0 2000", "0 2000: expected 0 to 1,000"),
        ("galaxy_shape --seeds -1", "--seed -1"),
        ("galaxy_shape --set opt_nam=sgd", "no such setting"),
    ],
    "sweep": [
        ("galaxy_shap", 'did you mean "galaxy_shape"'),
        ("galaxy_shape --batch-sizes 2,x", "with commas between"),
        ("galaxy_shape --images 1", "benchmarks that generate: galaxy_generation"),
        ("galaxy_shape --epochs 0", "expected more than 0 and at most 100"),
        ("galaxy_shape --set global_batch_size=4", "give the batch sizes with"),
        ("galaxy_shape --against nowhere.json", "cannot be read"),
        ("galaxy_vae", "no paper reports times .*; fix: give it, e.g. --batch-sizes 8,16,32"),
        ("galaxy_shape --samples 100", "--samples: only --quality has it"),
        ("galaxy_shape --seeds 1", "--seeds: only --quality has it"),
        ("galaxy_shape --quality --epochs 1", "leave it out beside --quality"),
        ("galaxy_shape --quality --samples 0", "expected 1 to"),
        ("galaxy_shape --quality --samples 9 --batch-sizes 2,10",
         "--batch-sizes: 10 is more than the 9 samples of each training; fix:"),
        ("galaxy_shape --quality --seeds 1,x", f"--seeds 1,x: {NUMBERS}"),
        ("galaxy_generation --quality", "galaxy_generation trains nothing"),
        ("kfac --framework keras", "kfac has no task for it"),
        ("galaxy_shape --framework jax", 'no framework "jax"'),
        ("galaxy_shape --framework keras --device cpu", "keras takes what it finds; fix: leave"),
    ],
    "targets": [
        ("galaxy_shape --only frozn", 'no variant "frozn"; did you mean "frozen"'),
        ("galaxy_shape --seeds 0", "--seeds 0"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("study", "arguments", "message"),
    [(study, *case) for study, cases in WRONG_USE.items() for case in cases],
)
def test_wrong_use(
    study: str, arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "_count_places", lambda: (2, "processors"))
    folder = str(write_folder(tmp_path)) if "FOLDER" in arguments else ""
    for variable in (DEVICE, DEVICE_MODULE):
        monkeypatch.setenv(variable, "")  # a study changes it
    with pytest.raises(UserError, match=message):
        main([study, *arguments.replace("FOLDER", folder).split()])


# Files alone, numbers alone, and bits that are compared with those of another day.
COMPUTE_AS_THEY_ARE = ("formats", "project", "resolution", "fingerprint", "pending")


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_help_says_what_is_measured_and_how(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    study: Study = import_module(MEASUREMENTS[name][0]).STUDY
    with pytest.raises(SystemExit):
        main([name, "--help"])
    printed = capsys.readouterr().out
    assert study.name == name
    assert study.description in printed
    assert "exit codes: 0" in printed
    assert ("--device KIND" in printed) == (name not in COMPUTE_AS_THEY_ARE)


# Formats: what is read is what was written, and nothing is left behind ---------------------------

CONTENTS = [bytes([number]) * (number * 37 % 11 + 1) for number in range(60)]


@pytest.mark.parametrize("way", PACKINGS, ids=lambda way: way.name)
def test_what_is_read_is_what_was_written(
    way: Packing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_installed(way):
        pytest.skip(f"{way.package} is not installed")
    monkeypatch.setattr(formats, "SHARD_FILES", 25)
    way.write(tmp_path, CONTENTS)
    formats.drop_from_caches(tmp_path)
    assert [bytes(content) for content in way.read(tmp_path, None)] == CONTENTS
    order = [7, 0, 59, 7, 31]
    if not way.only_in_order:
        read = way.read(tmp_path, order)
        assert [bytes(content) for content in read] == [CONTENTS[place] for place in order]


def test_prints_a_table_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(formats, "is_installed", lambda way: not way.package)
    data = tmp_path / "data"
    assert main(["formats", "--data", str(data), "--files", "20", "--rounds", "2"]) == 0
    printed = capsys.readouterr().out
    assert "LMDB: left out, lmdb is not installed" in printed
    assert "cold, random order" in printed
    assert sum(line.startswith("raw file and index  2 ") for line in printed.splitlines()) == 1
    assert not list(data.iterdir())


def test_too_little_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**6))
    with pytest.raises(UserError, match=r"1 MB free, .* needed"):
        main(["formats", "--data", str(tmp_path), "--files", "20"])
    assert not list(tmp_path.iterdir())


def test_png_decoding_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="images are resized by torch")
    monkeypatch.setattr(formats, "PIXELS", 64)
    monkeypatch.setattr(formats, "IMAGES", 2)
    assert main(["formats", "--png", "--rounds", "1"]) == 0
    assert "images/s on one core" in capsys.readouterr().out
