"""`cepheid measure project` as its user meets it."""

import json
from pathlib import Path

import pytest

from cepheid.measure.engine.recorded_points import PointFolder
from cepheid.measure.studies.scaling.points import Point
from cepheid.measure.studies.scaling.records import write_scaling
from cepheid.rules.errors import UserError
from cepheid.tools.measure.__main__ import main
from tests.measure.test_scaling import point

pytest.importorskip("matplotlib", reason="the figure needs the extra site")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kept = PointFolder(tmp_path, Point.from_json)
    for ranks in (1, 2):
        kept.keep(point(ranks))
    write_scaling(kept, {"benchmark": "resnet50", "scale": "mini", "mode": "weak"})
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet5"], 'did you mean "resnet50"'),
        (["resnet50", "--within", "nvlink"], "is no known link"),
        (["resnet50", "--devices", "1,x"], "with commas between them"),
        (["resnet50", "--devices", "99999999"], "up to 1,048,576"),
        (["resnet50", "--devices-per-node", "0"], "expected 1 or more"),
        (["resnet50", "--faster", "0"], "must be above 0"),
        (["resnet50", "--overlap", "2"], "from 0 to 1"),
        (["resnet50", "--batch-size", "0"], "expected 1 or more"),
        (["galaxy_shape"], "its benchmark is resnet50, expected galaxy_shape"),
        (["resnet50", "--scale", "full"], "its scale is mini, expected full"),
        (["kfac", "--published"], "benchmarks that have some: resnet50"),
    ],
)
def test_wrong_use(arguments: list[str], message: str, folder: Path) -> None:
    with pytest.raises(UserError, match=message):
        main(["project", *arguments, "--from", str(folder)])


def test_ranks_that_share_a_model_are_not_projected(folder: Path) -> None:
    facts = {"benchmark": "resnet50", "scale": "mini", "mode": "weak"}
    kept = PointFolder(folder, Point.from_json)
    write_scaling(kept, {**facts, "overrides": ["spatial_partitions=1", "pipeline_stages=2"]})
    with pytest.raises(UserError, match=r"\(pipeline=2:1f1b:4\).*fix: measure without"):
        main(["project", "resnet50", "--from", str(folder)])


def test_no_measurement_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`cepheid measure scaling` writes it"):
        main(["project", "resnet50", "--from", str(tmp_path / "nowhere")])


def test_from_a_measurement(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figure = folder / "p.json", folder / "p.png"
    call = ["resnet50", "--from", str(folder), "--within", "nvlink4"]
    call += ["--between", "infiniband_hdr", "--output", str(out), "--figure", str(figure)]
    assert main(["project", *call]) == 0
    said = capsys.readouterr().out
    assert "Measured here, beside the model" in said
    assert "minutes to the target" in said
    assert "256 devices and more would have less than a sample each" in said
    assert figure.read_bytes().startswith(b"\x89PNG")
    facts = json.loads(out.read_text())
    rows = facts["projections"]
    assert [row["devices"] for row in rows] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert facts["costs"]["input_samples_per_second"] is None
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds, reverse=True)


def test_published_times(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figure = folder / "p.json", folder / "p.png"
    call = ["resnet50", "--published", "--figure", str(figure), "--output", str(out)]
    assert main(["project", *call]) == 0
    said = capsys.readouterr().out
    assert "coreweave_n448" in said
    assert "-2.0%" in said
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert json.loads(out.read_text())["h100"][0][0]["error"] == pytest.approx(-0.013, abs=1e-3)
