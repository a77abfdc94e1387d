"""Shallow baselines: their bounds, what they find on a few samples, and margins."""

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cepheid.compliance.score import margins
from cepheid.measure.studies.shallow import baselines, copied, frames, galaxies, pictures, sentences
from cepheid.measure.studies.shallow.trial import CONFIGURATIONS_MAX, Baseline, Trial, try_out
from cepheid.reference.galaxies.stamps import reorient
from cepheid.rules import definition, evidence
from cepheid.rules.evidence import BASELINES_FILE, Curve, Evidence
from cepheid.tools.measure.__main__ import main
from tests import tiny

MINI = definition.load("resnet50", "mini")


# Bounds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds_each", "tried", "best"),
    [
        (0.1, CONFIGURATIONS_MAX, 0.2),
        (20.0, 3, 0.03),  # the fourth would end after 80 seconds
        (61.0, 0, None),
    ],
)
def test_effort_is_bounded(seconds_each: float, tried: int, best: float | None) -> None:
    now = [0.0]

    def run(trial: Trial) -> Iterator[dict[str, float]]:
        for number in itertools.count(1):
            now[0] += seconds_each
            yield {"accuracy": number / 100}

    trial = Trial(MINI, Path(), 1)
    curve = try_out(Baseline("endless", run), trial, lambda: now[0])
    assert (curve.evaluations[-1][1]["accuracy"] if curve.evaluations else None) == best
    assert curve.seconds == pytest.approx(tried * seconds_each)


# On a few samples each beats chance --------------------------------------------------------------

SIZE = 24
TRAIN, JUDGED = 160, 80


def draw_stripes(count: int, findings: bool) -> tuple[Any, np.ndarray]:
    """Noisy pictures of two classes: upright and lying stripes."""
    random = np.random.default_rng(3)
    classes = random.integers(0, 2, count)
    x = np.arange(SIZE)
    waves = 40 * np.sin(x[None, :] * 1.6 + random.uniform(0, 6, (count, 1)))
    images = np.where(
        classes[:, None, None] == 0, waves[:, None, :], waves[:, :, None]
    ) + random.normal(128, 8, (count, SIZE, SIZE))
    grey = images.clip(0, 255).astype(np.uint8)[..., None]
    labels = np.stack([classes, 1 - classes], 1).astype(np.float32) if findings else classes
    data = SimpleNamespace(
        labels=labels, channels=1, widths=np.full(count, SIZE), heights=np.full(count, SIZE),
        files=SimpleNamespace(decode=lambda row: grey[row]),
    )  # fmt: skip
    return data, labels


def try_on(data: object, run: Callable[[Trial], Iterator[Any]], **facts: Any) -> list[Any]:
    chosen = SimpleNamespace(
        data={"train_samples": TRAIN}, model=facts, train_samples=TRAIN, evaluation_samples=JUDGED
    )
    trial = Trial(chosen, Path(), 1)  # type: ignore[arg-type]
    vars(trial)["data"] = data
    return list(run(trial))


@pytest.mark.parametrize(
    "run",
    [
        pictures.run_patches, pictures.run_two_layers, pictures.run_gradients,
        pictures.run_neighbours,
    ],
)  # fmt: skip
def test_pictures_are_told_apart_better_than_by_chance(
    run: Callable[[Trial], Iterator[Any]],
) -> None:
    data, _ = draw_stripes(TRAIN + JUDGED, findings=False)
    found = try_on(data, run, pixels=SIZE)
    assert len(found) <= CONFIGURATIONS_MAX
    assert max(each["accuracy"] for each in found) > 0.7


def test_labels_are_not_read_from_what_is_judged() -> None:
    """With labels of other pictures nothing is learnt, so nothing leaks."""
    data, labels = draw_stripes(TRAIN + JUDGED, findings=False)
    data.labels = np.random.default_rng(1).permutation(labels)
    found = try_on(data, pictures.run_gradients, pixels=SIZE)
    assert max(each["accuracy"] for each in found) < 0.7


def test_every_row_has_a_baseline_that_runs() -> None:
    named = {name for names in baselines.ROWS.values() for name in names}
    assert all(callable(baselines.find_baseline(name).run) for name in named)
    assert set(baselines.ROWS) <= set(definition.names())


def test_findings_have_areas() -> None:
    truth = np.eye(14, dtype=np.float32)[np.arange(JUDGED) % 14]
    assert pictures.judge(torch.from_numpy(truth + 0.1), truth)["auroc"] == 1.0


def test_words_of_a_similar_sentence_are_replaced() -> None:
    words = sentences.count_dictionary(SOURCE, TARGET)
    assert words["cat"] == "KATZEcat"
    assert words["sea"] == "MEERsea"
    (nearest,) = sentences.find_nearest(SOURCE[:-1], [SOURCE[-1]])
    assert nearest in (1, 3, 4)
    made = sentences.replace_words(SOURCE[nearest], TARGET[nearest], SOURCE[-1], words)
    assert made == TARGET[-1]


def test_frames_go_on_with_a_share_of_the_last_change() -> None:
    past = torch.linspace(0.1, 0.6, 6).view(1, 1, 6, 1, 1)
    assert frames.go_on(past, 2, 0.0).flatten().tolist() == pytest.approx([0.6, 0.6])
    assert frames.go_on(past, 2, 0.5).flatten().tolist() == pytest.approx([0.65, 0.7])


def draw_ellipses(count: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    random = np.random.default_rng(5)
    e = random.uniform(-0.5, 0.5, (count, 2))
    side = np.arange(33) - 16.0
    y, x = np.meshgrid(side, side, indexing="ij")
    e1, e2 = (part[:, None, None] for part in e.T)
    form = (1 - e1) * x**2 + (1 + e1) * y**2 - 2 * e2 * x * y
    images = np.exp(-form / 30) + random.normal(0, 0.01, form.shape)
    stamps = np.stack([images, 0.5 * images], 1).astype(np.float16)
    return stamps, {"e1": e[:, 0], "e2": e[:, 1]}


@pytest.mark.parametrize("orientation", range(8))
def test_moments_turn_as_stamps_do(orientation: int) -> None:
    stamps, labels = draw_ellipses(3)
    stamps[:, :, 3:7, 4] += 1  # no symmetry
    truth = np.stack(list(labels.values()), 1)
    rows, codes = np.arange(3), np.full(3, orientation)
    turned, turned_labels = reorient(stamps, truth, rows, codes)
    flips = torch.from_numpy(codes)
    expected = galaxies.reorient(galaxies.measure_moments(stamps), flips)
    for mine, theirs in zip(expected, galaxies.measure_moments(turned), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-3, rtol=2e-3)
    mine = galaxies.reorient_labels(torch.from_numpy(truth), flips)
    np.testing.assert_allclose(mine.numpy(), turned_labels)


def test_moments_tell_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galaxies, "EPOCHS", (30,))
    stamps, labels = draw_ellipses(TRAIN + JUDGED)
    (found,) = try_on(SimpleNamespace(stamps=stamps, labels=labels), galaxies.run_moments)
    blind = math.sqrt(sum(np.var(each) for each in labels.values()) / 2)
    assert found["e_rmse"] < 0.5 * blind
    assert math.isfinite(found["nll"])


SOURCE = [f"the {a} sees the {b}".split() for a in ("cat", "dog", "fox") for b in ("sun", "sea")]
TARGET = [f"KATZE{a} sieht MEER{b}".split() for a in ("cat", "dog", "fox") for b in ("sun", "sea")]


@pytest.mark.parametrize("change", [copied.shift, copied.rescale, copied.blend])
def test_altered_images_are_no_copies_but_near_them(change: copied.Alter) -> None:
    random = np.random.default_rng(0)
    images = random.uniform(0, 1, (20, 2, 12, 12)).astype(np.float32)
    altered = change(images, random)
    assert altered.shape == images.shape
    assert all((one != two).any() for one, two in zip(altered, images, strict=True))
    assert altered.mean() == pytest.approx(images.mean(), rel=0.3)


@pytest.mark.parametrize(
    ("name", "baseline"),
    [
        *(("video_prediction", baseline) for baseline in baselines.ROWS["video_prediction"]),
        ("galaxy_generation", "shifted"),
    ],
)
def test_it_runs_on_a_tiny_dataset_and_is_recorded(
    name: str, baseline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip("galsim" if name == "galaxy_generation" else "numpy")
    monkeypatch.setattr(baselines, "ROWS", {name: (baseline,)})
    monkeypatch.setattr(baselines, "run_alone", lambda run, *arguments: run(*arguments))
    chosen = tiny.install(tmp_path, monkeypatch, name, data={**tiny.SIZES}, data_digest=None)
    command = ["baselines", name, "--seeds", "1", "--data", str(tmp_path / "data")]
    assert main(command) in (0, 1)
    found = evidence.load(chosen, BASELINES_FILE)
    assert found is not None
    (curve,) = found.curves
    assert (curve.variant, curve.seed) == (baseline, 1)
    assert {target.metric for target in chosen.quality} <= curve.evaluations[-1][1].keys()
    monkeypatch.setattr(baselines, "run_alone", None)  # it is not made again
    assert main(command) in (0, 1)
    assert baseline in capsys.readouterr().out


# Margins ----------------------------------------------------------------------------------------


def save(file: str, *curves: Curve) -> None:
    evidence.save(MINI.name, MINI.scale, Evidence(MINI.digest, curves), file)


def make_curve(variant: str, seed: int, *values: float) -> Curve:
    points = tuple((1000 * at, {"accuracy": value}) for at, value in enumerate(values, 1))
    return Curve(variant, seed, 1.0, points)


@pytest.mark.parametrize(
    ("shallow", "deviations", "warns"), [(0.85, -5, False), (0.90, 0, True), (0.99, 9, True)]
)
def test_margins_are_in_deviations_of_the_correct_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    shallow: float, deviations: float, warns: bool,
) -> None:  # fmt: skip
    monkeypatch.setenv(definition.BENCHMARKS_VARIABLE, str(tmp_path))
    (tmp_path / "resnet50").mkdir()
    assert margins.describe(MINI) == ""
    save(
        evidence.FILE,
        *(make_curve("correct", at, 0.5, value) for at, value in enumerate((0.91, 0.92, 0.93), 1)),
        make_curve("frozen", 1, 0.1, 0.2, 0.1),
        make_curve("linear", 2, 0.3, 0.1, 0.1),
    )
    save(BASELINES_FILE, make_curve("random_patches", 1, shallow), make_curve("gradients", 1, 0.4))
    found = margins.find_margins(MINI)
    assert found.correct is not None
    assert found.correct.seed == 1
    assert found.correct.deviations == pytest.approx(1)
    assert found.broken is not None
    assert (found.broken.variant, found.broken.value) == ("linear", 0.3)
    assert found.shallow is not None
    assert found.shallow.variant == "random_patches"
    assert found.shallow.deviations == pytest.approx(deviations, abs=1e-6)
    assert ("without learning the task" in margins.describe(MINI)) == warns


@pytest.mark.parametrize("name", sorted(baselines.ROWS))
def test_no_recorded_baseline_comes_near_a_target(name: str) -> None:
    """The nearest lies three standard deviations of the correct seeds from the target, or more."""
    shallow = margins.find_margins(definition.load(name, "mini")).shallow
    assert shallow is not None
    assert shallow.deviations <= -3
