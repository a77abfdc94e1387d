"""`cepheid data` with images in ImageNet's layout."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("simplejpeg", reason="needs the extra imagenet")

from cepheid.reference.data import imagenet
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.tools import prepare_data
from tests import tiny
from tests.reference.data.pictures import CLASSES, EVALUATION, TRAIN, jpeg, write_set


@pytest.fixture(autouse=True)
def few_images(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    data: dict[str, Any] = {
        "generator": "imagenet",
        "source": imagenet.REAL,
        "classes": len(CLASSES),
        "train_samples": TRAIN,
        "evaluation_samples": EVALUATION,
    }
    folder = tmp_path_factory.mktemp("benchmarks")
    tiny.install(folder, monkeypatch, "resnet50", "full", data=data, data_digest=None)


def arguments(root: Path) -> list[str]:
    return [definition.names()[0], "--data", str(root)]


def test_packs_names_what_is_unusual_and_verifies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_set(tmp_path)
    (source / "train/n01/train_000.JPEG").write_bytes(jpeg(0, "L"))
    assert prepare_data.main(arguments(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert f"{TRAIN + EVALUATION} samples of imagenet" in printed
    assert "unusual images, which are used: 1 grey" in printed
    assert "remarks.txt" in printed
    assert prepare_data.main([*arguments(tmp_path), "--verify"]) == 0


def test_missing_set_damaged_image_and_export_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no such folder\. Put ImageNet there"):
        prepare_data.main(arguments(tmp_path))
    source = write_set(tmp_path)
    damaged = source / "train/n01/train_000.JPEG"
    damaged.write_bytes(damaged.read_bytes()[:500])
    with pytest.raises(UserError, match=r"damaged: 1 of 18 images(.|\n)*train_000\.JPEG"):
        prepare_data.main(arguments(tmp_path))
    with pytest.raises(UserError, match="has no galaxies"):
        prepare_data.main([*arguments(tmp_path), "--export", "fits"])
