"""A small benchmark for tests alone, so that golden files do not change with the real ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from cepheid.rules import definition, rcp
from cepheid.rules.definition import Definition
from tests.compliance.asserting import Patch
from tests.compliance.builder import reference_points

STAR_SHAPE: dict[str, Any] = {
    "name": "star_shape",
    "title": "Star shape estimation",
    "task": {"kind": "train"},
    "model": {},
    "quality": [{"metric": "rmse", "better": "lower"}, {"metric": "accuracy", "better": "higher"}],
    "reported": ["coverage"],
    "meanings": {"rmse": "error of the shape", "accuracy": "share of stars that are right"},
    "data": {"generator": "stars"},
    "timing": {"init_minutes_max": 10},
    "runs": {"required": 5, "drop": {"fastest": 1, "slowest": 1}},
    "hyperparameters": {
        "global_batch_size": {"default": 10, "closed": {"from": 2}},
        "opt_name": {"closed": "adam"},
        "opt_base_learning_rate": {"default": 0.001, "closed": {"from": 1e-6, "to": 1.0}},
        "schedule": {"closed": ["cosine", "linear"]},
    },
    "scales": {
        "full": {
            "provisional": "targets from a first look",
            "model": {"parameters": 1000},
            "data": {"train_samples": 1000, "evaluation_samples": 100},
            "timing": {"eval_every_samples": 1000, "max_samples": 20_000},
            "targets": {"rmse": 0.05, "accuracy": 0.9},
        },
        "mini": {
            "flops_per_sample": 1_000_000,
            "summary": "100 parameters on 100 generated stars; not the sky.",
            "model": {"parameters": 100},
            "data": {"train_samples": 100, "evaluation_samples": 20},
            "timing": {"eval_every_samples": 50, "max_samples": 400},
            "targets": {"rmse": 0.1, "accuracy": 0.8},
        },
    },
}


STAR_IMAGES: dict[str, Any] = {
    "name": "star_images",
    "title": "Star image generation",
    "task": {"kind": "generate"},
    "model": {"weights_digest": "b" * 64},
    "quality": [
        {"metric": "distance", "better": "lower"},
        {"metric": "distinct", "better": "higher"},
    ],
    "meanings": {"distance": "from real stars", "distinct": "share of different ones"},
    "data": {"generator": "stars"},
    "timing": {"init_minutes_max": 10},
    "runs": {"required": 5, "drop": {"fastest": 1, "slowest": 1}},
    "hyperparameters": {},
    "scales": {
        "mini": {
            "model": {"parameters": 100},
            "data": {"train_samples": 100, "evaluation_samples": 20},
            "generation": {"counts": [1, 10, 50], "repetitions": [200, 5, 3], "warm_up_images": 10},
            "targets": {"distance": 0.1, "distinct": 0.8},
        }
    },
}


SAMPLES = {  # to target, of the reference at mini scale; an evaluation every 50
    5: (100, 100, 150, 150, 150),
    10: (150, 150, 150, 150, 200),
    20: (200, 200, 260, 260, 300),
}


def install(folder: Path, monkeypatch: Patch, data_digest: str | None = None) -> Definition:
    """Make ``star_shape`` and ``star_images`` the only benchmarks; returns the first's mini scale.

    That one has reference convergence points, the full scale has none. ``data_digest`` is that of
    the reference's dataset, where it is known.
    """
    shape = deepcopy(STAR_SHAPE)
    if data_digest:
        shape["scales"]["mini"]["data_digest"] = data_digest
    for document in (shape, STAR_IMAGES):
        path = folder / document["name"] / "benchmark.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(yaml.safe_dump(document))
    monkeypatch.setenv(definition.BENCHMARKS_VARIABLE, str(folder))
    mini = definition.load("star_shape", "mini")
    rcp.save(mini.name, mini.scale, reference_points(mini, SAMPLES))
    return mini


@contextmanager
def installed(folder: Path) -> Iterator[Definition]:
    """Work in a folder of its own, with the benchmarks of ``install``: for fixtures of a module."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield install(folder / "benchmarks", patch)
