"""ChestX-ray14 is read as it is distributed, and only if it is split by patient."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cepheid.reference.data import radiographs
from cepheid.reference.data.radiographs import FINDINGS, layout
from cepheid.reference.data.store import StoreError
from tests.reference.data.radiographs import replica
from tests.reference.data.radiographs.replica import ENTRIES, PARAMETERS, TEST, TRAIN

DATA = {"generator": "radiographs", "source": radiographs.REAL, "train_samples": len(TRAIN)}
Change = Callable[[Path], object]


def prepare(root: Path) -> radiographs.Radiographs:
    folder = root / radiographs.parameters_of({**DATA, "evaluation_samples": len(TEST)}).folder_name
    radiographs.prepare(folder, PARAMETERS, processes=1)
    return radiographs.load(folder)


def test_the_distributed_files_are_packed_with_their_labels(tmp_path: Path) -> None:
    replica.write_replica(tmp_path)
    packed = prepare(tmp_path)
    for row, name in enumerate((*TRAIN, *TEST)):
        findings, patient = ENTRIES[name]
        found = {FINDINGS[k] for k in np.flatnonzero(packed.labels[row])}
        assert found == set(findings.split("|")) - {"No Finding"}
        assert packed.patients[row] == patient
        image = packed.files.decode(row)
        assert image.shape == (replica.PIXELS, replica.PIXELS, 1)
        assert image[0, 0, 0] == 255
        assert image[20, 20, 0] == 20 * tuple(ENTRIES).index(name)
    folder = (
        tmp_path / radiographs.parameters_of({**DATA, "evaluation_samples": len(TEST)}).folder_name
    )
    (remark,) = radiographs.remarks(folder)
    assert "1 no JPEG, or one in other colours" in remark  # not the grey ones


def replace(file: str, old: str, new: str) -> Change:
    def change(source: Path) -> None:
        text = (source / file).read_bytes().decode()
        assert old in text
        (source / file).write_bytes(text.replace(old, new).encode())

    return change


def cut_short(source: Path) -> None:
    path = source / "images_001/images/00000001_000.png"
    path.write_bytes(path.read_bytes()[:-30])


def flip_a_bit(source: Path) -> None:
    path = source / "images_001/images/00000001_000.png"
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(content)


TABLE, TEST_LIST = "Data_Entry_2017.csv", "test_list.txt"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace(TABLE, "00000004_000.png,Mass|Nodule,4,4", "00000004_000.png,Mass,4,2"),
         r"1 patients have images in training and evaluation \(2\).*Split by patient"),
        (replace(TEST_LIST, "00000004_000", "00000001_001"), "an image is listed twice"),
        (replace(TEST_LIST, "00000004_000.png\n", ""), "2 images, expected 3"),
        (replace(TEST_LIST, "00000004_000", "00000044_000"), "says nothing of 00000044_000.png"),
        (replace(TEST_LIST, "00000004_000.png", "../../a.png"), "is not the name of an image"),
        (replace(TABLE, "Mass|Nodule", "Mass|Nodul"), "line 6: finding 'Nodul', expected"),
        (replace(TABLE, "Mass|Nodule", '"Mass' + "x" * 140_000), "is no row of a table"),
        (replace(TABLE, "Patient ID", "Patient"), "has no column 'Patient ID'"),
        (replace(TABLE, "00000002_000.png,No Finding,2,2", "00000002_000.png,No Finding,2,x"),
         "patient 'x' of image"),
        (lambda source: (source / TABLE).unlink(), "there is no such file. Put ChestX-ray14 there"),
        (lambda source: (source / TEST_LIST).unlink(), "Put the official list there"),
        (lambda source: (source / TABLE).write_bytes(b"\xff\xfe\x00"), "is no text"),
        (lambda source: (source / "images_001/images/00000001_000.png").unlink(),
         "there is no such file, nor 0 others. Unpack all twelve archives"),
        (cut_short, r"1 of 7 images cannot be decoded.*images_001/images/00000001_000\.png"),
        (flip_a_bit, r"1 of 7 images cannot be decoded"),
    ],
)  # fmt: skip
def test_wrong_files_are_refused_in_one_sentence(
    change: Change, message: str, tmp_path: Path
) -> None:
    change(replica.write_replica(tmp_path))
    with pytest.raises(StoreError, match=re.compile(message, re.DOTALL)):
        prepare(tmp_path)


def test_the_later_edition_and_one_folder_of_images_are_read_too(tmp_path: Path) -> None:
    source = replica.write_replica(tmp_path)
    (source / TABLE).rename(source / "Data_Entry_2017_v2020.csv")
    (source / "images").mkdir()
    for path in list(source.glob("images_*/images/*.png")):
        path.rename(source / "images" / path.name)
    assert len(prepare(tmp_path).labels) == 7


def test_prepared_data_that_share_a_patient_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may have prepared them with other code."""
    replace(TABLE, ",Mass|Nodule,4,4", ",Mass|Nodule,4,2")(replica.write_replica(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(layout, "refuse_shared_patients", lambda *parts: None)
        prepare(tmp_path)
    with pytest.raises(StoreError, match=r"1 patients have images in training and evaluation"):
        prepare(tmp_path)
