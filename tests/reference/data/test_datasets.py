"""What every dataset must satisfy: its settings, its folder, and a preparation that goes on."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

for package, extra in (("galsim", "galsim"), ("simplejpeg", "imagenet"), ("torch", "torch")):
    pytest.importorskip(package, reason=f"needs the extra {extra}")

from cepheid.reference.data import generators, store, verification
from cepheid.reference.data.store import Manifest, StoreError
from tests.reference.data import pictures
from tests.reference.data.coco import replica as photographs
from tests.reference.data.radiographs import replica as chests
from tests.reference.data.videos.test_clips import write_kitti


@dataclass(frozen=True)
class Case:
    """The ``data`` section of a small dataset, how its folder's name begins, and its files.

    ``write`` puts the distributed files below a data root; None where all is drawn.
    """

    generator: str
    train: int
    evaluation: int
    title: str
    settings: Mapping[str, Any]
    write: Callable[[Path], object] | None = None

    @property
    def data(self) -> dict[str, Any]:
        """Return the ``data`` section."""
        counts = {"train_samples": self.train, "evaluation_samples": self.evaluation}
        return {"generator": self.generator, **counts, **self.settings}

    def prepare(self, root: Path, processes: int = 1, **options: Any) -> Manifest:
        """Prepare the dataset below ``root``."""
        dataset = importlib.import_module(f"cepheid.reference.data.{self.generator}").DATASET
        parameters = dataset.parse(self.data)
        manifest: Manifest = dataset.prepare(
            root / parameters.folder_name, parameters, processes, **options
        )
        return manifest


CASES = (
    Case("galaxies", 3, 2, "galaxies-5-", {"bands": "gri", "pixels": 32}),
    Case("scenes", 3, 2, "scenes-5-", {}),
    Case("videos", 3, 2, "videos-sky-5-", {}),
    Case("videos", 3, 2, "videos-KITTI-5-", {"source": "KITTI", "frames": 4},
         lambda root: write_kitti(root / "KITTI", {"training": [9, 5], "testing": [3, 11]})),
    Case("imagenet", 12, 6, "imagenet-shapes-18-", {"source": "shapes", "classes": 3}),
    Case(*("imagenet", 12, 6, "imagenet-ILSVRC2012-18-"), {"source": "ILSVRC2012", "classes": 3},
         pictures.write_set),
    Case("radiographs", 6, 4, "radiographs-drawings-10-", {"source": "drawings"}),
    Case(*("radiographs", 4, 3, "radiographs-ChestX-ray14-7-"), {"source": "ChestX-ray14"},
         chests.write_replica),
    Case("coco", 9, 4, "coco-13-", {}, photographs.write_replica),
    Case("coco", 9, 4, "coco-13-", {"masks": True}, photographs.write_replica),
)  # fmt: skip
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.title.rstrip("-"))


@each_case
def test_an_interrupted_preparation_continues_to_the_same_dataset(
    case: Case, tmp_path: Path
) -> None:
    if "masks" in case.settings:
        pytest.importorskip("faster_coco_eval", reason="comes with the extra detection")
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    for root in (straight, resumed):
        root.mkdir()
        if case.write:
            case.write(root)
    told: list[tuple[int, int]] = []
    whole = case.prepare(straight, on_progress=lambda *done: told.append(done))
    assert told == sorted(told)
    assert told[-1] == (case.train + case.evaluation,) * 2

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        case.prepare(resumed, on_progress=interrupt)
    assert case.prepare(resumed, processes=2).digest == whole.digest
    folder = generators.folder(case.data, resumed)
    assert folder.name.startswith(case.title)
    assert verification.verify(folder) == store.read_manifest(folder)
    assert not generators.find_problem(case.data, resumed)


@each_case
def test_another_setting_is_another_dataset(case: Case, tmp_path: Path) -> None:
    others = [{"train_samples": case.train + 1}]
    others += [{"seed": 1}] * (case.write is None) + [{"masks": True}] * (case == CASES[-2])
    names = {generators.folder({**case.data, **change}, tmp_path).name for change in ({}, *others)}
    assert len(names) == 1 + len(others)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.write], ids=lambda case: case.title
)
def test_missing_distributed_files_are_told(case: Case, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no such f|: 0 clips, expected 3"):
        case.prepare(tmp_path)
    assert "put or link the distributed files there" in generators.find_problem(case.data, tmp_path)


@pytest.mark.parametrize(
    ("generator", "change", "message"),
    [
        ("galaxies", {"psf_fwhm": 0.7}, 'data.psf_fwhm: .* did you mean "psf_fwhm_arcsec"'),
        ("galaxies", {"bands": "gxr"}, 'bands are "gxr"'),
        ("galaxies", {"bands": "grr"}, 'bands are "grr"'),
        ("galaxies", {"bands": "iz"}, "r among them"),
        ("galaxies", {"train_samples": -2}, "samples is 0"),
        ("galaxies", {"exposure_seconds": [15, 15]}, "expected one positive number for each"),
        ("galaxies", {"sky_electrons": [0] * 3}, "expected one positive number for each"),
        ("scenes", {"pixels": 8}, "expected 32 or more"),
        ("scenes", {"fewest_objects": 9}, "expected 1 or more and not less"),
        ("scenes", {"train_samples": 0}, "below 1"),
        ("scenes", {"colour": 1}, "no such setting"),
        ("videos", {"pixels": 8}, "data.pixels is 8"),
        ("videos", {"source": "MNIST"}, "data.source is 'MNIST', expected one of sky"),
        ("videos", {"train_samples": 0}, "below 1"),
        ("videos", {"colour": 1}, "data.colour: videos has no such setting"),
        ("imagenet", {"source": "CIFAR"}, "expected shapes or trios or ILSVRC2012"),
        ("imagenet", {"classes": 13}, "at most 12 classes"),
        ("imagenet", {"evaluation_samples": 0}, "expected 1 or more"),
        ("imagenet", {"sead": 1}, 'no such setting; did you mean "seed"'),
        ("radiographs", {"source": "photographs"}, "expected drawings or ChestX-ray14"),
        ("radiographs", {"train_samples": 0}, "is below 1"),
        ("radiographs", {"pixels": 16}, "expected 32 to 256"),
        ("radiographs", {"pixel": 16}, "has no such setting"),
        ("coco", {"source": "COCO2014"}, "expected COCO2017"),
        ("coco", {"train_samples": 0}, "below 1"),
        ("coco", {"seed": 1}, "no such setting"),
    ],
)
def test_impossible_settings_are_refused(
    generator: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    case = next(case for case in CASES if case.generator == generator)
    with pytest.raises(StoreError, match=message):
        generators.folder({**case.data, **change}, tmp_path)
