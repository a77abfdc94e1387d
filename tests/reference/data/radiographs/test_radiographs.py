"""ChestX-ray14 is read as it is distributed, only if split by patient; drawings stand for it."""

import hashlib
import io
import math
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from PIL import Image

from cepheid.reference.data import radiographs
from cepheid.reference.data.image_files import decoding
from cepheid.reference.data.radiographs import FINDINGS, layout
from cepheid.reference.data.radiographs.auroc import bootstrap_intervals, compute_auroc, trace_curve
from cepheid.reference.data.radiographs.drawings import (
    MARKS,
    NEAR,
    SHARES,
    Drawing,
    draw_chest,
    draw_findings,
    encode_png,
    list_drawings,
    place_marks,
)
from cepheid.reference.data.store import StoreError
from tests.reference.data.numbered import change_byte
from tests.reference.data.radiographs import replica
from tests.reference.data.radiographs.replica import ENTRIES, PARAMETERS, TEST, TRAIN

Change = Callable[[Path], object]


def prepare(root: Path) -> radiographs.Radiographs:
    radiographs.prepare(root / PARAMETERS.folder_name, PARAMETERS, processes=1)
    return radiographs.load(root / PARAMETERS.folder_name)


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
    (remark,) = radiographs.remarks(tmp_path / PARAMETERS.folder_name)
    assert "1 no JPEG, or one in other colours" in remark  # not the grey ones


def replace(file: str, old: str, new: str) -> Change:
    def change(source: Path) -> None:
        text = (source / file).read_bytes().decode()
        assert old in text
        (source / file).write_bytes(text.replace(old, new).encode())

    return change


TABLE, TEST_LIST = "Data_Entry_2017.csv", "test_list.txt"
IMAGE = "images_001/images/00000001_000.png"


def cut_short(source: Path) -> None:
    (source / IMAGE).write_bytes((source / IMAGE).read_bytes()[:-30])


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
        (lambda source: (source / IMAGE).unlink(),
         "there is no such file, nor 0 others. Unpack all twelve archives"),
        (cut_short, r"1 of 7 images cannot be decoded.*images_001/images/00000001_000\.png"),
        (lambda source: change_byte(source / IMAGE, 60), r"1 of 7 images cannot be decoded"),
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


# Drawings -----------------------------------------------------------------------------------------


SEED = 20260101


def test_findings_are_rare_and_no_patient_is_in_both_parts() -> None:
    drawn = [draw_findings(SEED, Drawing(patient, 0)) for patient in range(1, 3001)]
    labels = np.array([[name in found for name in FINDINGS] for found in drawn], float)
    shares = labels.mean(axis=0)
    assert (shares < [SHARES[name] + 0.02 for name in FINDINGS]).all()
    assert (shares > [0.4 * SHARES[name] for name in FINDINGS]).all()
    assert 0.15 < (labels.sum(axis=1) == 0).mean() < 0.35
    pairs = [[mark for name in found & NEAR.keys() for mark in NEAR[name]] for found in drawn]
    assert max(map(len, pairs)) == 4  # of five marks
    assert all(len(marks) == len(set(marks)) for marks in pairs)
    column = {name: labels[:, k] for k, name in enumerate(FINDINGS)}
    assert np.corrcoef(column["Pneumothorax"], column["Emphysema"])[0, 1] > 0.1
    train, evaluation = list_drawings(SEED, (50, 30))
    assert (len(train), len(evaluation)) == (50, 30)
    patients = [{drawing.patient for drawing in part} for part in (train, evaluation)]
    assert not patients[0] & patients[1]
    assert 20 < len(patients[0]) < 35
    assert len({drawing.name for drawing in (*train, *evaluation)}) == 80


def test_a_finding_can_be_seen_and_a_patient_recognised() -> None:
    plain = draw_chest(SEED, Drawing(5, 0), frozenset(), 48).astype(int)
    assert np.array_equal(plain, draw_chest(SEED, Drawing(5, 0), frozenset(), 48))
    for name in FINDINGS:
        with_it = draw_chest(SEED, Drawing(5, 0), frozenset([name]), 48).astype(int)
        assert (np.abs(with_it - plain) > 20).sum() > 20, name


@pytest.mark.parametrize("pairs", [(), ("Mass",), ("Atelectasis", "Hernia")])
def test_all_five_marks_are_always_there_and_near_are_those_of_a_finding(
    pairs: tuple[str, ...],
) -> None:
    for seed in range(20):
        near = [NEAR[name] for name in pairs]
        placed = list(place_marks(np.random.default_rng(seed), near, 48))
        assert sorted(mark.shape for mark in placed) == sorted(MARKS)
        close = {
            tuple(sorted((a.shape, b.shape)))
            for a, b in combinations(placed, 2)
            if math.hypot(a.across - b.across, a.down - b.down) < 14
        }
        assert close == set(near)


def test_png_files_are_those_that_others_read_and_have_the_same_bytes_everywhere() -> None:
    """Compressed ones would depend on the library that compresses them."""
    file = encode_png(draw_chest(SEED, Drawing(7, 1), frozenset(["Mass", "Edema"]), 48))
    assert hashlib.sha256(file).hexdigest()[:16] == "3eb8edd9e54d5dc0"
    levels = np.random.default_rng(1).integers(0, 256, (300, 257), dtype=np.uint8)  # two blocks
    file = encode_png(levels)
    with Image.open(io.BytesIO(file)) as image:
        assert image.mode == "L"
        assert np.array_equal(np.asarray(image), levels)
    assert decoding.examine_png(file) == (300, 257, decoding.GREY)
    assert np.array_equal(decoding.decode_png(file)[:, :, 0], levels)
    assert decoding.examine_png(file[:-20])[2] == decoding.examine_png(b"")[2] == decoding.DAMAGED


# Areas under ROC curves ---------------------------------------------------------------------------


def compare_all_pairs(scores: np.ndarray, labels: np.ndarray) -> float:
    """The definition, pair by pair."""
    above = [
        1.0 if high > low else 0.5 if high == low else 0.0
        for high in scores[labels == 1]
        for low in scores[labels == 0]
    ]
    return float(np.mean(above)) if above else 0.5


@given(some.lists(some.tuples(some.integers(0, 5), some.integers(0, 1)), min_size=1, max_size=40))
def test_the_area_is_the_share_of_pairs_in_order(drawn: list[tuple[int, int]]) -> None:
    scores, labels = np.array(drawn, float).T
    expected = compare_all_pairs(scores, labels)
    (area,) = compute_auroc(scores[:, None].astype(np.float32), labels[:, None])
    assert area == pytest.approx(expected, abs=1e-12)
    if 0 < labels.sum() < len(labels):
        false_rate, true_rate = trace_curve(scores, labels)
        assert np.trapezoid(true_rate, false_rate) == pytest.approx(expected, abs=1e-12)


def test_known_areas_and_their_intervals_which_are_narrower_with_more_images() -> None:
    scores = np.array([[0.1, 1, 3, 0], [0.4, 2, 2, 0], [0.35, 3, 1, 0], [0.8, 4, 0, 0]])
    labels = np.array([[0, 0, 0, 1], [0, 0, 0, 1], [1, 1, 1, 1], [1, 1, 1, 1]])
    assert compute_auroc(scores, labels).tolist() == [0.75, 1.0, 0.0, 0.5]
    random = np.random.default_rng(2)
    widths = []
    for count in (100, 1600):
        labels = random.random((count, 2)) < 0.2
        scores = random.standard_normal((count, 2)) + labels
        low, high = bootstrap_intervals(scores, labels)
        area = compute_auroc(scores, labels)
        assert np.all((low < area) & (area < high))
        widths.append((high - low).mean())
    assert 2.5 < widths[0] / widths[1] < 6  # the square root of 16
