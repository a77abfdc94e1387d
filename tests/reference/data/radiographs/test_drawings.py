"""Drawings of chests: rare findings that occur together, in bytes that are the same everywhere."""

import hashlib
import io

import numpy as np
from PIL import Image

from cepheid.reference.data.image_files import decoding
from cepheid.reference.data.radiographs import FINDINGS
from cepheid.reference.data.radiographs.drawings import (
    SHAPES_OF,
    SHARES,
    Drawing,
    draw_chest,
    draw_findings,
    encode_png,
    list_drawings,
)

SEED = 20260101


def test_findings_are_rare_and_occur_together() -> None:
    drawn = [draw_findings(SEED, Drawing(patient, 0)) for patient in range(1, 3001)]
    labels = np.array([[name in found for name in FINDINGS] for found in drawn], float)
    shares = labels.mean(axis=0)
    assert np.abs(shares - [SHARES[name] for name in FINDINGS]).max() < 0.03
    assert 0.35 < (labels.sum(axis=1) == 0).mean() < 0.5
    assert max(len(found & SHAPES_OF.keys()) for found in drawn) == 2  # two lungs
    column = {name: labels[:, k] for k, name in enumerate(FINDINGS)}
    assert np.corrcoef(column["Pneumothorax"], column["Emphysema"])[0, 1] > 0.1


def test_no_patient_is_in_both_parts_and_some_have_several_drawings() -> None:
    train, evaluation = list_drawings(SEED, (50, 30))
    assert (len(train), len(evaluation)) == (50, 30)
    patients = [{drawing.patient for drawing in part} for part in (train, evaluation)]
    assert not patients[0] & patients[1]
    assert 20 < len(patients[0]) < 35
    assert len({drawing.name for drawing in (*train, *evaluation)}) == 80


def test_a_finding_can_be_seen_and_a_patient_recognised() -> None:
    plain = draw_chest(SEED, Drawing(5, 0), frozenset(), 48).astype(int)
    again = draw_chest(SEED, Drawing(5, 0), frozenset(), 48)
    assert np.array_equal(plain, again)
    for name in FINDINGS:
        with_it = draw_chest(SEED, Drawing(5, 0), frozenset([name]), 48).astype(int)
        assert (np.abs(with_it - plain) > 20).sum() > 20, name


def test_files_have_the_same_bytes_everywhere() -> None:
    """Compressed ones would depend on the library that compresses them."""
    file = encode_png(draw_chest(SEED, Drawing(7, 1), frozenset(["Mass", "Edema"]), 48))
    assert hashlib.sha256(file).hexdigest()[:16] == "03780db1eaf67e90"


def test_png_files_are_those_that_others_read() -> None:
    levels = np.random.default_rng(1).integers(0, 256, (300, 257), dtype=np.uint8)  # two blocks
    file = encode_png(levels)
    with Image.open(io.BytesIO(file)) as image:
        assert image.mode == "L"
        assert np.array_equal(np.asarray(image), levels)
    assert decoding.examine_png(file) == (300, 257, decoding.GREY)
    assert np.array_equal(decoding.decode_png(file)[:, :, 0], levels)
    assert decoding.examine_png(file[:-20])[2] == decoding.examine_png(b"")[2] == decoding.DAMAGED
