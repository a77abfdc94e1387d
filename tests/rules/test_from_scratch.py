"""rules/from_scratch.md: its Python, NumPy alone, reads and computes what the reference does."""

import dataclasses
import itertools
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cepheid.rules import definition, digests
from cepheid.rules.host import ROOT

PAGE = (ROOT / "rules" / "from_scratch.md").read_text(encoding="utf-8")
SIZES = {"train_samples": 24, "evaluation_samples": 8}
RANDOM = np.random.default_rng(7)


def run_page() -> Any:
    """The names that the page's Python defines; it imports NumPy and the standard library."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    assert "cepheid" not in set(re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE))
    names: dict[str, Any] = {}
    exec(compile(code, "from_scratch.md", "exec"), names)
    return SimpleNamespace(**names)


page = run_page()


def prepare(name: str, root: Path) -> tuple[Path, dict[str, Any]]:
    """Prepare a small dataset of a benchmark; returns its folder and its ``data`` section."""
    from cepheid.reference.data import generators
    from tests import prepared

    facts = {**definition.load(name, "mini").data, **SIZES}
    if facts["generator"] == "wmt":
        facts = {**facts, "train_samples": 600, "vocabulary": 300, "longest_tokens": 400}
    prepared.prepare(facts, root)
    return check_digest(generators.folder(facts, root)), facts


def check_digest(folder: Path) -> Path:
    """Return the folder of a dataset whose digest is what the page says."""
    assert page.digest_data(folder) == json.loads((folder / "manifest.json").read_text())["digest"]
    return folder


def test_galaxies(data_root: Path) -> None:
    pytest.importorskip("galsim", reason="galaxies need the extra galsim")
    from cepheid.reference.data import galaxies
    from cepheid.reference.galaxies.stamps import reorient

    folder, _ = prepare("galaxy_shape", data_root)
    sky = galaxies.load(folder)
    stamps, labels = page.read_galaxies(folder, range(3, 11))
    assert stamps.dtype == sky.stamps.dtype
    assert np.array_equal(stamps, sky.stamps[3:11])
    assert np.array_equal(labels, np.stack([sky.labels["e1"], sky.labels["e2"]], 1)[3:11])
    assert np.array_equal(page.read_fixed(folder, "noise_free", range(2)), sky.noise_free[:2])
    ours = reorient(stamps, labels, np.arange(8), np.arange(8))
    for code in range(8):
        stamp, *label = page.turn(stamps[code], *labels[code], code)
        assert np.array_equal(stamp, ours[0][code])
        assert np.array_equal(label, ours[1][code])


def test_images(data_root: Path) -> None:
    pytest.importorskip("simplejpeg", reason="images need the extra imagenet")
    from cepheid.reference.data import imagenet
    from cepheid.reference.data.image_files.crops import Cropping, make_evaluation_views

    folder, _ = prepare("resnet50", data_root)
    images = imagenet.load(folder)
    facts = page.read_fixed(folder, "facts", range(32))
    assert facts.itemsize == 13
    assert np.array_equal(facts["label"], images.labels)
    files = page.read_ragged(folder, "images", range(5, 9))
    assert files == [bytes(images.files.read(row)) for row in range(5, 9)]
    assert all(file.startswith(b"\xff\xd8") for file in files)
    assert page.read_ragged(folder, "names", range(1))[0].startswith(b"train/")
    rows = np.arange(24, 32)
    boxes = make_evaluation_views(images, Cropping(40, 44), rows).boxes
    for row, box in zip(rows, boxes, strict=True):
        width, height = int(facts["width"][row]), int(facts["height"][row])
        assert page.find_evaluation_box(width, height, 40, 44) == tuple(box)


def test_scenes(data_root: Path) -> None:
    pytest.importorskip("galsim", reason="scenes need the extra galsim")
    from cepheid.reference.data import scenes

    folder, _ = prepare("ssd", data_root)
    ours = scenes.load(folder)
    for name in ("images", "boxes", "labels"):
        read = page.read_fixed(folder, name, range(3, 11))
        assert np.array_equal(read, getattr(ours, name)[3:11])
    assert ours.images.shape[1:] == (64, 64, 3)
    assert ours.boxes.shape[1:] == (8, 4)
    bits = np.unpackbits(page.read_fixed(folder, "masks", range(3, 11)), axis=-1)
    assert np.array_equal(bits.reshape(8, 8, 64, 64), ours.read_masks(np.arange(3, 11)))
    levels = np.array([0, 78, 255])
    assert 2 * np.sinh(6.5 * levels / 255 - 2) == pytest.approx(scenes.compute_sky_noises(levels))
    assert scenes.BANDS == "irg"


def test_radiographs(data_root: Path) -> None:
    pytest.importorskip("PIL", reason="images need the extra imagenet")
    from cepheid.reference.data import radiographs
    from cepheid.reference.data.radiographs.auroc import compute_auroc

    folder, _ = prepare("chest_xray", data_root)
    ours = radiographs.load(folder)
    facts = page.read_fixed(folder, "facts", range(32))
    assert facts.itemsize == 17
    assert np.array_equal(facts["patient"], ours.patients)
    findings = page.read_fixed(folder, "findings", range(32))
    assert np.array_equal(findings, ours.labels)
    assert page.read_ragged(folder, "images", range(2))[1] == bytes(ours.files.read(1))
    logits = np.round(np.random.default_rng(1).standard_normal(findings.shape), 1)
    areas = [page.area(logits[:, k], findings[:, k]) for k in range(14)]
    assert areas == pytest.approx(compute_auroc(logits, findings))


def test_clips(data_root: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    from cepheid.benchmarks.video_prediction import quality
    from cepheid.reference.data import videos

    folder, _ = prepare("video_prediction", data_root)
    frames = page.read_fixed(folder, "frames", range(3, 11))
    assert np.array_equal(frames, videos.load(folder).frames[3:11])
    past, true = (torch.rand(60, 1, 6, 16, 16).double() for _ in range(2))
    predicted = (true + true.roll(1, -1)) / 2
    distance = quality.summarize(quality.measure(past, predicted, true), 60)["clip_distance"]
    both = (torch.cat((past[:, :, -2:], each), 2).numpy() for each in (predicted, true))
    assert page.clip_distance(*both) == pytest.approx(distance, rel=1e-6) != 0


def test_sentences(data_root: Path) -> None:
    pytest.importorskip("sentencepiece", reason="sentences need the extra translation")
    from cepheid.reference.data import wmt

    folder, _ = prepare("transformer", data_root)
    pairs = wmt.load(folder)
    rows = range(598, 604)
    for name, ours in (("source", pairs.source), ("target", pairs.target)):
        for row, content in zip(rows, page.read_ragged(folder, name, rows), strict=True):
            assert np.array_equal(np.frombuffer(content, "<u2"), ours.row(row))
            assert np.frombuffer(content, "<u2")[-1] == 1
    references = page.read_ragged(folder, "reference", range(608))
    assert not any(references[:600])
    assert [text.decode() for text in references[600:]] == list(pairs.references)


def test_photographs(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg", reason="images need the extra imagenet")
    from cepheid.reference.data import coco
    from tests.reference.data.coco import replica

    replica.write_replica(tmp_path)
    folder = check_digest(replica.pack(tmp_path))
    photographs = coco.load(folder)
    rows = range(replica.TRAIN + replica.EVALUATION)
    facts = page.read_fixed(folder, "facts", rows)
    assert facts.itemsize == 17
    assert np.array_equal(facts["image_id"], photographs.image_ids)
    boxes, labels = photographs.read_boxes(np.arange(len(rows)))
    for row, objects in enumerate(page.read_objects(folder, rows)):
        counted = objects[np.all(objects["box"][:, 2:] > 0, axis=1)]
        assert np.array_equal(counted["label"], labels[row][labels[row] > 0])
        corners = boxes[row][labels[row] > 0][:, :2] * [facts["width"][row], facts["height"][row]]
        np.testing.assert_allclose(corners, counted["box"][:, :2], atol=1e-4)


def test_masks_of_photographs(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg", reason="images need the extra imagenet")
    pytest.importorskip("faster_coco_eval", reason="needs the extra detection")
    from cepheid.reference.data import coco
    from tests.reference.data.coco import replica

    replica.write_replica(tmp_path)
    parameters = dataclasses.replace(replica.PARAMETERS, masks=True)
    folder = check_digest(replica.pack(tmp_path, parameters))
    ours = coco.load(folder)
    rows = range(replica.TRAIN + replica.EVALUATION)
    stored = (page.read_ragged(folder, name, rows) for name in ("masks", "mask_ends"))
    for row, (content, ends) in enumerate(zip(*stored, strict=True)):
        limits = [0, *np.frombuffer(ends, "<i4").tolist()]
        codes = [bytes(content[low:high]) for low, high in itertools.pairwise(limits)]
        assert codes == [mask["counts"] for mask in ours.read_masks(row)]


def draw_normals(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    mean, scale = RANDOM.normal(size=(*shape, 2)), np.zeros((*shape, 2, 2))
    scale[..., 0, 0], scale[..., 1, 1] = RANDOM.uniform(0.3, 2, (2, *shape))
    scale[..., 1, 0] = RANDOM.normal(size=shape)
    return mean, scale


def test_metrics_of_shapes() -> None:
    from cepheid.benchmarks.galaxy_bnn.framework_free import Predictive
    from cepheid.reference.galaxies.shapes import name_metrics, sum_metrics

    labels = RANDOM.normal(size=(50, 2))
    mean, scale = draw_normals(50)
    expected = name_metrics(sum_metrics(mean, scale, labels).tolist(), 2)
    assert page.shape_metrics(mean, scale, labels) == pytest.approx(expected)
    means, scales = draw_normals(4, 50)
    *usual, share = Predictive(means, scales).sum_metrics(labels)
    expected = name_metrics(usual, 2)
    found = page.mixture_metrics(means, scales, labels)
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    assert found["epistemic_share"] == pytest.approx(share / 50)
    assert found["coverage_68_error"] == pytest.approx(abs(expected["coverage_68"] - 0.68))


def test_kl_divergence() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    mean, deviation = RANDOM.normal(size=20), RANDOM.uniform(0.1, 2, 20)
    each = torch.distributions.kl_divergence(
        torch.distributions.Normal(torch.tensor(mean), torch.tensor(deviation)),
        torch.distributions.Normal(0.0, 1.5),
    )
    assert page.kl_divergence(mean, deviation, 1.5) == pytest.approx(float(each.sum()))


def test_metrics_of_the_autoencoder() -> None:
    pytest.importorskip("scipy")
    from cepheid.benchmarks.galaxy_vae import quality
    from cepheid.reference.galaxies import properties

    errors, signals = RANDOM.uniform(0, 90, (2, 40))
    expected = quality.explained_signal(errors, signals, quality.NOISE_FLOOR)
    assert page.explained_signal(errors, signals) == pytest.approx(expected)
    mean, deviation = RANDOM.normal(size=(200, 32)), RANDOM.uniform(0.1, 1, (200, 32))
    nll = RANDOM.normal(size=200)
    assert page.flow_gain(mean, deviation, nll) == pytest.approx(
        quality.flow_gain(mean, deviation, nll)
    )
    images = RANDOM.uniform(0, 5, (30, 6, 32, 32)).astype(np.float32)
    ours = properties.measure(images, "ugrizy", 0.2)
    assert page.properties(images, 0.2) == pytest.approx(ours, rel=1e-4, abs=1e-5)
    by_name = properties.compute_distances(ours[:10], ours[10:], "ugrizy")
    assert page.distances(ours[:10], ours[10:]) == pytest.approx(list(by_name.values()))
    names = "magnitude, size_arcsec, e1, e2, u_g, g_r, r_i, i_z, z_y"
    assert names == ", ".join(by_name)
    assert names in PAGE


def test_the_constants_of_generation() -> None:
    pytest.importorskip("galsim", reason="needs the extra galsim")
    from cepheid.benchmarks.galaxy_generation import quality

    image = np.full((1, 1, 4, 4), 3.0)
    x = 3.0 * 2.5 / 6.0
    (cell,) = quality.average_cells(image, [6.0]).flatten().tolist()
    assert cell == pytest.approx(4 * x / math.sqrt(1 + x * x))
    assert "image · 2.5/I_b" in PAGE
    assert (quality.CELL_PIXELS, quality.NEARER_THAN_PERCENT) == (4, 1.0)


def test_descriptions_of_generated_images() -> None:
    pytest.importorskip("galsim", reason="needs the extra galsim")
    from cepheid.benchmarks.galaxy_generation import memorisation
    from cepheid.rules.metrics import compute_excess

    axis = np.arange(32) - 15.5
    y, x = np.meshgrid(axis, axis, indexing="ij")
    a, b, flux = RANDOM.uniform(1, 9, (3, 5, 6, 1, 1))
    images = flux * np.exp(-((x - 1) ** 2 / a + (x + y) ** 2 / b) / 4)
    expected = memorisation.describe(images, "ugrizy")
    np.testing.assert_allclose(page.describe(images), expected, rtol=2e-3, atol=2e-3)
    ways = memorisation.split(np.arange(26)[None], "ugrizy")
    columns = {name: (int(part[0, 0]), int(part[0, -1])) for name, part in ways.items()}
    assert columns == {"look": (0, 12), "shape": (5, 12), "form": (13, 25)}
    for share in (0.0, 0.02, 0.06, 0.4, 1.0):
        assert page.excess(share, 0.05, 700) == pytest.approx(compute_excess(share, 0.05, 700))


def test_metrics_of_images() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    pytest.importorskip("simplejpeg", reason="the task imports the extra imagenet")
    from cepheid.benchmarks.resnet50 import model

    logits, labels = RANDOM.normal(size=(60, 10)), RANDOM.integers(0, 10, 60)
    everything = torch.ones(60, dtype=torch.bool)
    sums = model.sum_metrics(torch.tensor(logits), torch.tensor(labels), everything).tolist()
    expected = dict(zip(("accuracy", "accuracy_top5", "loss"), sums, strict=False))
    found = page.image_metrics(logits, labels)
    assert found == pytest.approx({key: value / 60 for key, value in expected.items()})
    for values in (model.IMAGE_MEAN, model.IMAGE_DEVIATION):
        assert f"= ({', '.join(map(str, values))})" in PAGE


def test_bleu_and_the_beam() -> None:
    pytest.importorskip("torch", reason="needs the extra torch")
    pytest.importorskip("sacrebleu", reason="needs the extra translation")
    from cepheid.reference.torch.translation import beam_search
    from cepheid.reference.torch.translation.sentences import format_bleu_signature

    signature = format_bleu_signature()
    assert "case:lc" in signature
    assert "tok:intl" in signature
    assert beam_search.Search(4, 0.6, 20).penalty(7) == pytest.approx(((5 + 7) / 6) ** 0.6)


def test_seeds_and_digests_of_code(tmp_path: Path) -> None:
    assert page.derive_seed("n", "a", "b", "c", 3) == digests.derive_seed("n", "a", "b", "c", 3)
    for name in ("README.md", "README.py", "LICENSE", "train.py", "sub/LICENSE", "Copying.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert page.digest_code(tmp_path) == digests.digest_code(digests.digest_files(tmp_path))


def test_the_manifest_has_the_keys_of_the_page() -> None:
    schema = json.loads((ROOT / "rules/schemas/manifest.schema.json").read_text())
    section = PAGE.split("## The manifest of a submission")[1]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == schema["required"]
    for key in schema["properties"]["results"]["additionalProperties"]["required"]:
        assert f"`{key}`" in section
